"""`psf run`: real ranks that find each other, and that end together whatever happens."""

import asyncio
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import psutil
import pytest

from psframework.cli.app import main
from psframework.cluster.local import local_cluster
from psframework.cluster.process import child_environment
from psframework.testing.cluster import Program, program

PSF = "import sys; from psframework.cli.app import main; sys.exit(main(sys.argv[1:]))"
TRAIN = """
import asyncio, os, sys
import psframework as psf
from psframework.rpc.process import cores, facts

@psf.remote
def double(x):
    return 2 * x

async def main():
    async with psf.connect() as cluster:
        print("argv", sys.argv[1:])
        print("here", os.getpid(), cluster.name, os.environ["RANK"], os.environ["WORLD_SIZE"])
        await cluster.barrier("start", int(os.environ["WORLD_SIZE"]))
        while len(cluster.members("trainer")) < int(os.environ["WORLD_SIZE"]):
            await asyncio.sleep(0.01)  # the view comes by another stream than the barrier's answer
        print("members", sorted(m.name for m in cluster.members()))
        await cluster.barrier("seen", int(os.environ["WORLD_SIZE"]))  # nobody leaves before
        print("threads right", facts()["blas_threads"] == max(1, cores() // int(os.environ["WORLD_SIZE"])))
        if "--call" in sys.argv:
            print("worker says", await cluster.rpc_async("worker-0", double, (21,)))
        if "--fail" in sys.argv and cluster.name == "rank-1":
            raise ValueError("no such luck")
        if "--wait" in sys.argv:
            print("waits")
            await asyncio.sleep(60)

if __name__ == "__main__":
    asyncio.run(main())
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "said.py").write_text("import sys; print('argv', sys.argv[1:])")
    return tmp_path


async def run(folder: Path, *arguments: str, timeout: float = 50, **environment: str) -> tuple[int, str, str]:
    """Runs `psf run` to its end: status, stdout, stderr."""
    command = [sys.executable, "-c", PSF, "run", *arguments]
    process = await asyncio.create_subprocess_exec(
        *command,
        cwd=folder,
        env=child_environment(environment),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(timeout):
            output, errors = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode is not None
    return process.returncode, output.decode(), errors.decode()


def of(rank: int, output: str) -> list[str]:
    """What a rank printed."""
    return [line.removeprefix(f"[{rank}] ") for line in output.splitlines() if line.startswith(f"[{rank}] ")]


async def test_ranks_find_each_other(folder: Path) -> None:
    code, output, errors = await run(folder, "--nproc-per-node", "3", "train.py", "--lr", "1", "--", "-x")
    assert (code, errors) == (0, ""), output
    for rank in range(3):
        argv, here, members, threads = of(rank, output)
        assert argv == "argv ['--lr', '1', '--', '-x']"
        assert re.fullmatch(rf"here \d+ rank-{rank} {rank} 3", here)
        assert members == "members ['rank-0', 'rank-1', 'rank-2']"
        assert threads == "threads right True"
    assert len(output.splitlines()) == 12, "and nothing else"


async def test_with_servers_and_workers_that_know_the_script(folder: Path) -> None:
    flags = ["--nproc-per-node", "1", "--workers", "1", "--parameter-servers", "1", "--name", "trainer"]
    code, output, errors = await run(folder, *flags, "train.py", "--call")
    assert (code, errors) == (0, ""), output
    assert "members ['parameter-server-0', 'trainer-0', 'worker-0']" in of(0, output)
    assert "worker says 42" in of(0, output)


async def test_two_dashes_end_the_flags_of_psf_run(folder: Path) -> None:
    code, output, _ = await run(folder, "--nproc-per-node", "1", "--", "said.py", "--help")
    assert code == 0
    assert of(0, output)[0] == "argv ['--help']"


async def test_a_module_and_its_flags(folder: Path) -> None:
    code, output, _ = await run(folder, "-m", "said", "-m", "--nproc-per-node", "5")
    assert code == 0
    assert of(0, output)[0] == "argv ['-m', '--nproc-per-node', '5']"
    assert of(1, output) == []


async def test_the_ranks_of_a_cluster_that_is_there_already(folder: Path) -> None:
    async with local_cluster() as local:
        environment = {"PSF_COORDINATOR": local.address, "PSF_TOKEN": local.token}
        by_flag = run(folder, "--coordinator", local.address, "--name", "a", "train.py")
        both = await asyncio.gather(by_flag, run(folder, "--name", "b", "train.py", **environment))
        for (code, output, errors), name in zip(both, "ab"):
            assert (code, errors) == (0, "")
            assert f"{name}-0" in of(0, output)[2]
        code, _, errors = await run(folder, "--workers", "1", "train.py", **environment)
        assert code == 2 and "start them there with psf serve, or leave out --coordinator" in errors


async def test_one_rank_that_fails_ends_the_others(folder: Path) -> None:
    begin = time.monotonic()
    code, output, errors = await run(folder, "--nproc-per-node", "3", "train.py", "--fail", "--wait")
    assert code == 1
    assert time.monotonic() - begin < 30, "nobody waited"
    assert re.search(
        r"^psf run: rank 1 \(rank-1, pid \d+\) ended with status 1; ending the other", errors, re.M
    )
    trace = of(1, output)
    assert trace[-1] == "ValueError: no such luck"
    assert "train.py" in trace[trace.index("Traceback (most recent call last):") + 1]
    assert not any(psutil.pid_exists(pid) for pid in pids(output.splitlines()))


async def test_a_rank_that_is_killed(folder: Path) -> None:
    async with psf_run(folder, "--nproc-per-node", "2", "train.py", "--wait") as up:
        await waiting(up, 2)
        first, second = sorted(pids(up.process.output))
        psutil.Process(first).kill()
        assert await up.end(15) == 128 + 9
        assert not psutil.pid_exists(second)
        assert "was ended by SIGKILL; ending the other ranks" in up.process.last_words


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), pytest.param(signal.SIGTERM, 143, marks=pytest.mark.soak)]
)
async def test_signals_end_everything_within_5_s(folder: Path, number: int, code: int) -> None:
    async with psf_run(folder, "--nproc-per-node", "2", "--workers", "1", "train.py", "--wait") as up:
        await waiting(up, 2)
        family = psutil.Process(up.process.pid).children(recursive=True)
        assert len(family) == 4, "two ranks, a worker, the coordinator"
        begin = time.monotonic()
        up.process.send_signal(number)
        assert await up.end(15) == code
        assert time.monotonic() - begin < 5 + 3, "3 s for a machine that is busy with other tests"
        assert not [process for process in family if process.is_running()]


async def test_one_that_does_not_come_up_can_be_interrupted(folder: Path) -> None:
    (folder / "slow.py").write_text("import time; print('importing', flush=True); time.sleep(60)")
    async with psf_run(folder, "--workers", "1", "slow.py") as up:
        await up.line("[worker-0] importing")
        family = psutil.Process(up.process.pid).children(recursive=True)
        up.process.send_signal(signal.SIGTERM)
        assert await up.end(15) == 143
        assert "Traceback" not in up.process.last_words
        assert not [process for process in family if process.is_running()]


async def test_nothing_outlives_psf_run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(folder))  # one that is killed can't remove its folder
    async with psf_run(folder, "--nproc-per-node", "2", "train.py", "--wait") as up:
        await waiting(up, 2)
        family = psutil.Process(up.process.pid).children(recursive=True)
        up.process.kill()
        _, alive = await asyncio.to_thread(psutil.wait_procs, family, 10)
        assert alive == []


def test_nobody_reads(folder: Path) -> None:
    (folder / "talk.py").write_text("while True: print('x' * 1000)")
    command = [sys.executable, "-c", PSF, "run", "talk.py"]
    with subprocess.Popen(
        command, cwd=folder, env=child_environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.readline().startswith(b"[0] xxx")
        process.stdout.close()
        assert process.wait(20) == 128 + signal.SIGPIPE
        assert process.stderr.read() == b""


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nowhere.py"], "error: no script nowhere.py in "),
        (["-m", "nowhere"], "error: no module 'nowhere'"),
        (["--nproc-per-node", "0", "train.py"], "greater than or equal"),
        (["--nproc", "train.py"], "No such option"),
        (["--coordinator", "http://x", "train.py"], "not HOST:PORT"),
        ([], "Missing argument"),
    ],
    ids=["script", "module", "count", "flag", "address", "nothing"],
)
def test_what_can_not_be(
    folder: Path,
    arguments: Sequence[str],
    words: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setenv("COLUMNS", "120")
    code = main(["run", *arguments])
    output, errors = capfd.readouterr()
    assert (code, output) == (2, "")
    assert words in errors and "Traceback" not in errors


async def test_help_has_an_example(folder: Path) -> None:
    code, output, _ = await run(folder, "--help", COLUMNS="120")
    assert code == 0
    assert "Example: psf run --nproc-per-node 2 train.py --epochs 5" in output


def psf_run(folder: Path, *arguments: str) -> AbstractAsyncContextManager[Program]:
    """`psf run` as a process of the test; started in `folder`."""
    source = f"import os; os.chdir({str(folder)!r})\n" + PSF
    return program(folder, "psf_run", source, ["run", *arguments])


async def waiting(up: Program, ranks: int) -> None:
    """Until all ranks wait."""
    for rank in range(ranks):
        await up.line(f"[{rank}] waits")


def pids(output: Sequence[str]) -> list[int]:
    """Of the ranks, as they print them."""
    return [int(number) for number in re.findall(r"here (\d+)", "\n".join(output))]


HELD_OPEN = """
import asyncio, contextlib
import numpy as np
import psframework as psf

kept = contextlib.AsyncExitStack()  # as in a notebook: nobody ever leaves it

async def main():
    cluster = await kept.enter_async_context(psf.connect())
    group = await cluster.process_group(algorithm="direct")
    await group.all_reduce(np.ones(3))

asyncio.run(main())
"""


async def test_ranks_that_end_while_they_hold_a_connection_open(folder: Path) -> None:
    """The loop then cancels gRPC's own tasks, while the other rank still calls."""
    (folder / "held.py").write_text(HELD_OPEN)
    for _ in range(2):
        status, output, errors = await run(folder, "--nproc-per-node", "2", "held.py")
        assert status == 0, output + errors
        assert "Traceback" not in output + errors
