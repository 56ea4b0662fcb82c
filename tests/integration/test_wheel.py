"""The built wheel, alone, runs what README shows; nothing of the checkout is needed."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def readme_program() -> str:
    """The training loop that README shows."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    return next(block for block in blocks if "local_cluster" in block)


def test_readme_loop_is_short() -> None:
    lines = [line for line in readme_program().splitlines() if line.strip()]
    assert len(lines) <= 25


@pytest.mark.timeout(120)
def test_wheel_alone_runs_the_readme_loop(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path / "dist")]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True, timeout=60)
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    site, empty = tmp_path / "site", tmp_path / "empty"
    empty.mkdir()
    install = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(site), str(wheel)]
    subprocess.run(install, check=True, capture_output=True, timeout=60)
    program = readme_program()
    where = f"assert psf.__file__.startswith({str(site)!r}), psf.__file__"
    (empty / "train.py").write_text(
        program.replace("import psframework as psf", f"import psframework as psf\n{where}", 1)
    )
    environment = {**os.environ, "PYTHONPATH": str(site)}  # ahead of the editable install
    run = subprocess.run(
        [sys.executable, "train.py"], cwd=empty, env=environment, capture_output=True, text=True, timeout=90
    )
    assert run.returncode == 0, run.stderr
    accuracy = float(re.findall(r"accuracy (0\.\d+)", run.stdout)[-1])
    assert accuracy > 0.93, run.stdout
