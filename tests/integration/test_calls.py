"""Programs that call functions elsewhere, as users write them: in one file, and however they end."""

import asyncio
import contextlib
import os
import subprocess
import sys
import textwrap
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import remote_functions as functions

import psframework as psf
from psframework.cluster.local import LocalCluster
from psframework.cluster.process import ServiceProcess, child_environment
from psframework.rpc.deadline import Deadline
from psframework.testing.cluster import program

ONE_FILE = """
    import asyncio
    import sys
    import psframework as psf

    @psf.remote
    def add(x, y):
        return x + y

    @psf.remote
    class Net(psf.nn.Module):
        @staticmethod
        def size():
            return 7

    async def main():
        if len(sys.argv) > 1:
            async with psf.connect(sys.argv[1]) as cluster:
                print("answer", await cluster.rpc_async("worker-0", add, (1, 2)), flush=True)
            return
        async with psf.local_cluster(workers=1) as local, psf.connect(local.address) as cluster:
            print("answer", await cluster.rpc_async("worker-0", add, (1, 2)), flush=True)
            print("size", await cluster.rpc_async("worker-0", Net.size), flush=True)

    print("top level of", __name__, flush=True)
    if __name__ == "__main__":
        asyncio.run(main())
"""

NO_SHUTDOWN = """
    import asyncio
    import sys
    import time
    import psframework as psf

    @psf.remote
    def double(x):
        return 2 * x

    async def main():
        connection = psf.connect(sys.argv[1])
        cluster = await connection.__aenter__()
        print("answer", await cluster.rpc_async(cluster.name, double, (21,)), flush=True)
        if len(sys.argv) > 2:
            globals()["kept"] = connection, cluster, cluster.rpc_async(cluster.name, double, (1,))

    asyncio.run(main())
    print("end of program at", time.monotonic(), flush=True)
"""


def run(
    folder: Path, name: str, source: str, *arguments: str, seconds: float = 60
) -> subprocess.CompletedProcess:
    """Runs a script as `python NAME.py`, in its folder."""
    (folder / f"{name}.py").write_text(textwrap.dedent(source))
    command = [sys.executable, f"{name}.py", *arguments]
    return subprocess.run(
        command,
        cwd=folder,
        env=child_environment(),
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )


@pytest.fixture(scope="module")
async def local() -> AsyncIterator[LocalCluster]:
    """A coordinator; whoever joins it has left when its test ends."""
    async with psf.local_cluster() as cluster:
        yield cluster


async def test_one_file_is_enough(tmp_path: Path) -> None:
    done = await asyncio.to_thread(run, tmp_path, "train", ONE_FILE)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["top level of __main__", "answer 3", "size 7"]


async def test_a_script_and_a_worker_that_imports_it_agree_on_names(
    local: LocalCluster, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(textwrap.dedent(ONE_FILE))
    paths = os.pathsep.join(filter(None, [str(tmp_path), child_environment().get("PYTHONPATH")]))
    command = ["serve", "worker", "--coordinator", local.address, "--import", "train"]
    environment = {"PYTHONPATH": paths, "PSF_TOKEN": local.token}
    worker = ServiceProcess("worker-0", "psframework.cli.app", command, environment=environment)
    worker.start()
    try:
        await worker.wait_serving(30, joined=True)
        assert worker.output[0] == "top level of train"
        done = await asyncio.to_thread(run, tmp_path, "train", ONE_FILE, local.address)
        assert done.stdout.splitlines()[-1] == "answer 3", done.stderr
    finally:
        await worker.stop(5)


async def test_a_script_without_a_main_guard_is_told_so_and_starts_nothing_again(tmp_path: Path) -> None:
    bare = textwrap.dedent(ONE_FILE).replace('if __name__ == "__main__":\n    asyncio', "asyncio")
    done = await asyncio.to_thread(run, tmp_path, "bare", bare)
    assert done.returncode == 1
    assert done.stdout == "top level of __main__\n"
    last = done.stderr[done.stderr.index("PeerLost") :]
    assert "bare calls psf." in last
    assert "as soon as it is imported" in last
    assert 'if __name__ == "__main__":\n        asyncio.run(main())' in last


@pytest.mark.parametrize("more", [(), ("kept",)], ids=["dropped", "kept"])
async def test_a_program_that_ends_without_shutdown_ends(
    local: LocalCluster, tmp_path: Path, more: tuple[str, ...]
) -> None:
    """pytorch#136726: call yourself, return from main. Exit code 0, not a word, and it has left."""
    done = await asyncio.to_thread(run, tmp_path, "leave", NO_SHUTDOWN, local.address, *more)
    ended = time.monotonic()
    assert done.returncode == 0, done.stderr
    answer, end = done.stdout.splitlines()
    assert answer == "answer 42"
    assert ended - float(end.removeprefix("end of program at ")) < 4, "a lease is 5 s"
    assert done.stderr == ""
    async with psf.connect(local.address) as cluster:
        gone = Deadline.after(2)  # it has left: its lease would last longer
        await cluster.membership.wait_for(lambda view: len(view.members) == 1, gone)


async def test_twenty_times_in_one_process() -> None:
    """pytorch#41614, #39340: each time a new member that calls, is called, and leaves nothing open."""
    async with psf.local_cluster(workers=1, imports=["remote_functions"]) as local:
        open_files = []
        for _ in range(20):
            async with psf.connect(local.address, name="again") as cluster:
                asked = cluster.rpc_async("worker-0", functions.ask, ("again", "remote_functions.where"))
                assert await asked == ("async", "again", "worker-0")
                assert await cluster.rpc_async("again", functions.where) == ("async", "again", "again")
            open_files.append(len(os.listdir("/proc/self/fd")))
    assert max(open_files[10:]) <= max(open_files[:10]) + 2, open_files


MEMBERS, PROCESSES, NEIGHBOURS = 32, 4, 3
MANY = """
    import asyncio, sys
    import psframework as psf

    @psf.remote(name="who")
    async def who():
        return psf.current_cluster().name, psf.current_caller().name

    async def member(address, number, members, neighbours):
        async with psf.connect(address, name=f"member-{number}") as cluster:
            await cluster.barrier("all-are-here", members)
            others = [f"member-{(number + step + 1) % members}" for step in range(neighbours)]
            assert await cluster.rpc_all(others, who) == [(other, cluster.name) for other in others]
            print("called", number, flush=True)
            await cluster.barrier("all-have-called", members)

    async def main():
        address, first, count, members, neighbours = sys.argv[1], *map(int, sys.argv[2:])
        async with asyncio.TaskGroup() as group:
            for number in range(first, first + count):
                group.create_task(member(address, number, members, neighbours))

    asyncio.run(main())
"""


async def test_thirty_two_members_call_each_other(local: LocalCluster, tmp_path: Path) -> None:
    """pytorch#85607: start fails over 18 workers."""
    each = MEMBERS // PROCESSES
    async with contextlib.AsyncExitStack() as stack:
        running = []
        for first in range(0, MEMBERS, each):
            arguments = [local.address, *map(str, (first, each, MEMBERS, NEIGHBOURS))]
            members = program(tmp_path, f"members_{first}", MANY, arguments)
            running.append(await stack.enter_async_context(members))
        codes = await asyncio.gather(*(one.end(45) for one in running))
        output = [line for one in running for line in one.process.output]
        assert codes == [0] * PROCESSES, output
        assert sum(line.startswith("called") for line in output) == MEMBERS


@pytest.mark.soak
async def test_thirty_two_worker_processes() -> None:
    names = [f"worker-{number}" for number in range(MEMBERS)]
    async with psf.local_cluster(workers=MEMBERS, imports=["remote_functions"]) as local:
        async with psf.connect(local.address) as cluster:
            assert len(set(await cluster.rpc_all(names, functions.pid))) == MEMBERS
