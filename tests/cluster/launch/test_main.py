"""A rank's process runs its program as `python` would."""

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from psframework.cluster.process import child_environment

REPORT = """
import sys, os, beside
print(__name__, sys.argv, sys.path[0], os.path.isabs(__file__), "PSF_PARENT_FD" in os.environ)
print(sys.modules["__main__"].__dict__ is globals())
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    package = tmp_path / "package"
    package.mkdir()
    for name, text in (("train", REPORT), ("beside", ""), ("broken", "def f():\n    1 / 0\nf()\n")):
        (package / f"{name}.py").write_text(text)
    (tmp_path / "beside.py").touch()
    (tmp_path / "wrong.py").write_text("def f(:\n")
    return tmp_path


def run(folder: Path, *arguments: str, own: bool = True) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *(("-P", "-m", "psframework.cluster.launch.main") if own else ()), *arguments]
    return subprocess.run(
        command, cwd=folder, env=child_environment(), capture_output=True, text=True, timeout=50
    )


@pytest.mark.parametrize(
    ("ours", "pythons"),
    [
        (["script", "package/train.py"], ["package/train.py"]),
        (["module", "package.train"], ["-m", "package.train"]),
    ],
    ids=["script", "module"],
)
def test_name_arguments_and_path_are_as_under_python(
    folder: Path, ours: list[str], pythons: list[str]
) -> None:
    done = run(folder, *ours, "--flag", "--", "-x")
    plain = run(folder, *pythons, "--flag", "--", "-x", own=False)
    assert done.returncode == plain.returncode == 0, done.stderr
    assert done.stdout == plain.stdout
    assert done.stdout.splitlines()[1] == "True"


@pytest.mark.parametrize("script", ["package/broken.py", "wrong.py"])
def test_tracebacks_begin_in_the_program(folder: Path, script: str) -> None:
    done, plain = run(folder, "script", script), run(folder, script, own=False)
    assert done.returncode == plain.returncode == 1
    assert done.stderr.replace(f'"{folder}/', '"') == plain.stderr.replace(f'"{folder}/', '"')


def test_it_ends_with_psf_run_even_if_that_is_killed(folder: Path) -> None:
    (folder / "wait.py").write_text("import time; print('here', flush=True); time.sleep(60)")
    reading, writing = os.pipe()
    command = [sys.executable, "-P", "-m", "psframework.cluster.launch.main", "script", "wait.py"]
    environment = child_environment({"PSF_PARENT_FD": str(reading)})
    with subprocess.Popen(
        command, cwd=folder, env=environment, pass_fds=(reading,), stdout=subprocess.PIPE
    ) as child:
        os.close(reading)
        assert child.stdout is not None and child.stdout.readline() == b"here\n"
        os.close(writing)
        assert psutil.wait_procs([psutil.Process(child.pid)], timeout=10)[1] == []
