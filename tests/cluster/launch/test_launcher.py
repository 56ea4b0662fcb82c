"""Ranks of one program start together, are watched, and end together (more of it: tests/cli/test_run.py)."""

import asyncio
import re
import time
from pathlib import Path

import psutil
import pytest

from psframework.cluster.launch.launcher import Launcher, LaunchOptions
from psframework.cluster.launch.program import Program
from psframework.errors import ArgumentError, PeerLost


def options(tmp_path: Path, source: str, **more: object) -> LaunchOptions:
    (tmp_path / "script.py").write_text(source)
    return LaunchOptions(Program(str(tmp_path / "script.py")), coordinator=("127.0.0.1:1",), **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("ranks", [0, -1])
def test_at_least_one_rank(ranks: int) -> None:
    with pytest.raises(ArgumentError, match=f"--nproc-per-node {ranks}: at least one"):
        LaunchOptions(Program("train.py"), ranks)


@pytest.mark.parametrize("kind", ["workers", "parameter_servers"])
def test_services_are_started_only_in_a_cluster_of_their_own(kind: str) -> None:
    with pytest.raises(
        ArgumentError, match=r"joins the one at 10\.0\.0\.1:7070: start them there with psf serve"
    ):
        LaunchOptions(Program("train.py"), 2, coordinator=("10.0.0.1:7070",), **{kind: 1})  # type: ignore[arg-type]


async def test_lines_and_status(tmp_path: Path) -> None:
    lines: list[tuple[str, str]] = []
    source = "import os; print('a'); print('b', os.environ['PSF_NAME'])"
    launcher = Launcher(options(tmp_path, source, ranks=3, prefix="r"), lambda *line: lines.append(line))
    assert await launcher.run() == 0
    assert {label: [text for who, text in lines if who == label] for label in "012"} == {
        label: ["a", f"b r-{label}"] for label in "012"
    }


async def test_the_first_failure_is_told_and_those_that_follow_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = """
import os, sys, time
if os.environ["RANK"] == "1":
    open("{folder}/failed", "w").close()
    os._exit(7)
while not os.path.exists("{folder}/failed"): time.sleep(0.01)
time.sleep(0.1)
os._exit(5)
""".replace("{folder}", str(tmp_path))
    assert await Launcher(options(tmp_path, source, ranks=2), lambda *_: None).run() == 7
    told = capsys.readouterr().err
    assert re.search(
        r"rank 1 \(rank-1, pid \d+\) ended with status 7, then rank 0 .* ended with status 5", told
    )
    assert "ending the other ranks" not in told, "there are none left"


async def test_one_that_ignores_sigterm_is_killed_in_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("pid", os.getpid(), flush=True)
if os.environ["RANK"] == "0":
    while not os.path.exists("{folder}/both"): time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGKILL)
time.sleep(60)
""".replace("{folder}", str(tmp_path))
    pids: list[int] = []

    def show(label: str, line: str) -> None:
        pids.append(int(line.split()[1]))
        if len(pids) == 2:
            (tmp_path / "both").touch()

    begin = time.monotonic()
    assert await Launcher(options(tmp_path, source, ranks=2), show).run() == 128 + 9
    assert time.monotonic() - begin < 20
    assert not any(psutil.pid_exists(pid) for pid in pids)
    told = capsys.readouterr().err
    assert "rank 0 (rank-0, pid" in told and "was ended by SIGKILL; ending the other ranks" in told


async def test_cancelling_leaves_nothing(tmp_path: Path) -> None:
    pids: list[int] = []
    loop, both = asyncio.get_running_loop(), asyncio.Event()

    def show(label: str, line: str) -> None:
        pids.append(int(line))
        if len(pids) == 2:
            loop.call_soon_threadsafe(both.set)

    source = "import os, time; print(os.getpid(), flush=True); time.sleep(60)"
    task = asyncio.create_task(Launcher(options(tmp_path, source, ranks=2), show).run())
    await both.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not any(psutil.pid_exists(pid) for pid in pids)


async def test_a_cluster_that_does_not_come_up_says_why(tmp_path: Path) -> None:
    (tmp_path / "wrong.py").write_text("raise RuntimeError('oh')\n")
    program = Program(str(tmp_path / "wrong.py"))
    before = set(psutil.Process().children())
    with pytest.raises(PeerLost, match="worker-0 ended with status 2"):
        await Launcher(LaunchOptions(program, 1, workers=1), lambda *_: None).run()
    assert set(psutil.Process().children()) == before
