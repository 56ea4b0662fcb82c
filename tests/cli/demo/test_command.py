"""`psf demo` as its users run it: it learns, it survives the loss of a trainer, it goes on from a file."""

import re
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from psframework.cli.demo.command import COMPOSE
from psframework.cli.demo.model_file import load_model
from psframework.cli.demo.trainer import steps_per_epoch
from psframework.cluster.process import child_environment


def demo(folder: Path, *arguments: object) -> list[str]:
    command = [sys.executable, "-P", "-m", "psframework.cli.app", "demo", "--out", folder / "out", *arguments]
    result = subprocess.run(
        [str(part) for part in command],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=100,
        env=child_environment(),
        check=False,
    )
    assert result.returncode == 0, f"{result.stdout}\n{result.stderr}"
    assert result.stderr == ""
    return result.stdout.splitlines()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_interrupted_it_ends_its_processes(tmp_path: Path, number: int, code: int) -> None:
    command = [sys.executable, "-P", "-m", "psframework.cli.app", "demo", "--epochs", "500"]
    demo = subprocess.Popen(
        command,
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=child_environment(),
    )
    assert demo.stdout is not None
    try:
        next(line for line in demo.stdout if line.startswith("epoch "))
        children = psutil.Process(demo.pid).children(recursive=True)
        assert len(children) == 5
        demo.send_signal(number)
        rest = demo.stdout.read()
        assert demo.wait(20) == code
        assert "Traceback" not in rest
        assert psutil.wait_procs(children, timeout=5)[1] == []
    finally:
        demo.kill()
        demo.stdout.close()
        demo.wait()


def accuracy(lines: list[str]) -> float:
    assert lines[-1].startswith("test accuracy: 0.9")
    assert len(lines[-1]) == len("test accuracy: 0.987")
    return float(lines[-1].split()[-1])


def megabytes(line: str) -> float:
    """All that the line says were moved."""
    return sum(float(number) for number in re.findall(r"([\d.]+) MB", line))


@pytest.mark.timeout(120)
@pytest.mark.parametrize("lanes", [None, "inline,striped"])
def test_it_learns(tmp_path: Path, lanes: str | None) -> None:
    lines = demo(tmp_path, "--epochs", 5, *(["--lanes", lanes] if lanes else []))
    assert accuracy(lines) >= 0.94
    assert sum(line.startswith("epoch ") for line in lines) == 5
    assert any(COMPOSE in line for line in lines)
    moved = next(line for line in lines if line.startswith("trained to"))
    assert ("shm" in moved) == (lanes is None)
    by_shard = [line for line in lines if line.startswith("parameter-server-")]
    assert len(by_shard) == 2
    assert abs(sum(map(megabytes, by_shard)) - megabytes(moved)) < 0.3, "each byte went to one of the shards"
    assert (tmp_path / "out" / "run.png").read_bytes().startswith(b"\x89PNG")
    assert load_model(tmp_path / "out" / "model.safetensors").step == 5 * steps_per_epoch(2, 16)


@pytest.mark.timeout(180)
def test_kill_and_then_resume(tmp_path: Path) -> None:
    lines = demo(tmp_path, "--epochs", 5, "--kill")
    assert any(line.startswith("killed trainer-1 (SIGKILL) at step") for line in lines)
    assert accuracy(lines) >= 0.93
    first = load_model(tmp_path / "out" / "model.safetensors")
    again = demo(tmp_path, "--epochs", 1, "--resume", tmp_path / "out" / "model.safetensors")
    assert f"at step {first.step}, epoch {first.epoch}" in again[0]
    assert "slots begin anew" in again[0]
    second = load_model(tmp_path / "out" / "model.safetensors")
    assert second.step == first.step + steps_per_epoch(2, 16)
    assert second.epoch == first.epoch + 1
    assert accuracy(again) >= 0.94
