"""Brings the shipped docker-compose.yml up under a real engine, and runs `scenario.py` against it.

Where no engine runs, PSF_COMPOSE_TOOLS (default ../shared/tools/compose) may hold two scripts: `prep.sh CACHE
PROJECT` makes a private one, `engine-exec.sh CACHE COMMAND` runs a command with it. Else the test skips, and
says why.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TOOLS = Path(os.environ.get("PSF_COMPOSE_TOOLS") or ROOT.parent / "shared" / "tools" / "compose")
CACHE = Path(os.environ.get("PSF_COMPOSE_CACHE") or Path(tempfile.gettempdir()) / "psf-compose-cache")

pytestmark = [pytest.mark.compose, pytest.mark.timeout(900)]


def test_the_shipped_compose_file() -> None:
    command = [
        *engine(),
        *(sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--noconftest"),
        str(Path(__file__).with_name("scenario.py")),
    ]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=840, check=False)
    assert result.returncode == 0, f"{result.stdout[-20_000:]}\n{result.stderr[-5_000:]}"
    assert " passed" in result.stdout, result.stdout


def engine() -> list[str]:
    """What to put before a command so that it reaches a Docker engine; nothing if one runs already."""
    if shutil.which("docker") and succeeds(["docker", "compose", "version"]) and succeeds(["docker", "info"]):
        return []
    if not (TOOLS / "engine-exec.sh").exists():
        pytest.skip("no Docker engine runs here")
    if os.geteuid() != 0 or not shutil.which("unshare"):
        pytest.skip("a private Docker engine needs root and unshare")
    if not (CACHE / "ctx" / "Dockerfile").exists():
        prepared = subprocess.run(
            ["bash", TOOLS / "prep.sh", CACHE, ROOT], capture_output=True, text=True, timeout=400, check=False
        )
        if prepared.returncode != 0:
            print(prepared.stdout[-2000:], prepared.stderr[-2000:])
            pytest.skip("a private Docker engine could not be prepared")
    return ["bash", str(TOOLS / "engine-exec.sh"), str(CACHE)]


def succeeds(command: list[str]) -> bool:
    return subprocess.run(command, capture_output=True, timeout=30, check=False).returncode == 0
