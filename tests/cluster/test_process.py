"""Children are real processes: they say that they serve, leave last words, and die with their parent."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from psframework.cluster.process import ServiceProcess, child_environment
from psframework.errors import DeadlineExceeded, PeerLost

CHILD = """
import os, signal, sys, time
if sys.argv[1] == "serve":
    print("noise", flush=True)
    print("serving on 127.0.0.1:4711", flush=True)
    print("joined as child", flush=True)
if sys.argv[1] == "fail":
    sys.exit("no such luck")
if sys.argv[1] == "stubborn":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print("serving on 127.0.0.1:4711", flush=True)
if sys.argv[1] == "leaves":
    import subprocess
    left = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    print("left", left.pid, flush=True)
    sys.exit(3)
if sys.argv[1] == "grandchild":
    print("serving on 127.0.0.1:4711", flush=True)
    os.read(int(os.environ["PSF_PARENT_FD"]), 1)
    sys.exit(0)
time.sleep(60)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "child.py").write_text(CHILD)
    return tmp_path


@pytest.fixture
def start(folder: Path) -> Iterator[object]:
    started: list[ServiceProcess] = []

    def start_child(kind: str) -> ServiceProcess:
        process = ServiceProcess("child", "child", [kind], environment={"PYTHONPATH": str(folder)})
        started.append(process)
        process.start()
        return process

    yield start_child
    for process in started:
        process.kill()
        process.close()


async def test_waits_until_it_serves_and_stops_it(start) -> None:
    process = start("serve")
    assert await process.wait_serving(20, joined=True) == "127.0.0.1:4711"
    assert process.alive
    assert psutil.pid_exists(process.pid)
    await process.stop(5)
    assert not process.alive
    assert process.returncode == -signal.SIGTERM
    assert "noise" in process.output
    process.kill()  # of a process that has ended: nothing happens, nobody else is hit


async def test_one_that_ends_first_leaves_its_last_words(start) -> None:
    with pytest.raises(PeerLost, match=r"(?s)child ended with status 1.*no such luck") as caught:
        await start("fail").wait_serving(20)
    assert caught.value.peer == "child"


async def test_one_that_never_serves(start) -> None:
    with pytest.raises(DeadlineExceeded, match="child was not ready"):
        await start("silent").wait_serving(0.2)


async def test_one_that_ignores_sigterm_is_killed(start) -> None:
    process = start("stubborn")
    await process.wait_serving(20)
    await process.stop(0.1)
    assert process.returncode == -signal.SIGKILL


async def test_restarts_as_another_process(start) -> None:
    process = start("serve")
    await process.wait_serving(20, joined=True)
    first = process.pid
    await process.stop(5)
    process.start()
    await process.wait_serving(20, joined=True)
    assert process.pid != first


async def test_what_a_child_leaves_behind_ends_with_it(start) -> None:
    process = start("leaves")
    assert await process.wait(20) == 3, "though its output is still open"
    (line,) = process.output
    left = int(line.split()[1])
    assert await asyncio.to_thread(_is_gone, left)


def _is_gone(pid: int) -> bool:
    try:
        process = psutil.Process(pid)
        return process.status() == psutil.STATUS_ZOMBIE or psutil.wait_procs([process], 10)[1] == []
    except psutil.NoSuchProcess:
        return True


def test_children_end_when_their_parent_is_killed(folder: Path) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(folder)],
        stdout=subprocess.PIPE,
        text=True,
        env=child_environment(),
    )
    assert parent.stdout is not None
    child = psutil.Process(int(parent.stdout.readline()))
    parent.kill()
    parent.wait()
    parent.stdout.close()
    assert psutil.wait_procs([child], timeout=10)[1] == []


PARENT = """
import asyncio, sys
from psframework.cluster.process import ServiceProcess
async def main():
    process = ServiceProcess("child", "child", ["grandchild"], environment={"PYTHONPATH": sys.argv[1]})
    process.start()
    await process.wait_serving(20)
    print(process.pid, flush=True)
    await asyncio.sleep(60)
asyncio.run(main())
"""


def test_the_child_does_not_inherit_who_its_parent_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PSF_NAME", "parent")
    monkeypatch.setenv("PSF_LANES", "inline")
    environment = child_environment({"PSF_EXTRA": "1"})
    assert "PSF_NAME" not in environment
    assert environment["PSF_LANES"] == "inline"
    assert environment["PSF_CONFIG"] == os.devnull
    assert environment["PSF_EXTRA"] == "1"
