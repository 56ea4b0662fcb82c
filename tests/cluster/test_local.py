"""Local clusters are real processes: named, killable, restartable on the same port, and gone afterwards."""

import asyncio
import os
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest

from psframework.cluster.connect import connect
from psframework.cluster.local import LocalCluster, LocalOptions, local_cluster
from psframework.cluster.process import child_environment
from psframework.cluster.token import find_token
from psframework.errors import ArgumentError, ConfigurationError, NotRegistered, PeerLost
from psframework.rpc.deadline import Deadline
from psframework.testing.cluster import program


@pytest.fixture(scope="module")
async def local() -> AsyncIterator[LocalCluster]:
    async with local_cluster(parameter_servers=2) as cluster:
        yield cluster


async def test_processes_have_the_names_of_the_design(local: LocalCluster) -> None:
    assert list(local.processes) == ["coordinator", "parameter-server-0", "parameter-server-1"]
    assert len({process.pid for process in local.processes.values()} | {os.getpid()}) == 4
    async with connect(local.address) as cluster:
        names = [member.name for member in cluster.members(role="parameter-server")]
        assert sorted(names) == ["parameter-server-0", "parameter-server-1"]


async def test_a_killed_shard_is_missed_and_restarts_on_its_port(local: LocalCluster) -> None:
    shard = local.processes["parameter-server-0"]
    async with connect(local.address) as cluster:
        before = cluster.membership.find("parameter-server-0")
        assert before is not None
        pid, address = shard.pid, shard.address
        shard.kill()
        await cluster.membership.wait_for(
            lambda view: view.find("parameter-server-0") is None, Deadline.after(8)
        )
        await local.restart("parameter-server-0")
        await cluster.membership.wait_for(
            lambda view: bool(view.find("parameter-server-0")), Deadline.after(8)
        )
        after = cluster.membership.find("parameter-server-0")
    assert after is not None
    assert after.addresses == before.addresses == (address,)
    assert after.incarnation > before.incarnation
    assert shard.pid != pid


async def test_a_restarted_coordinator_keeps_the_members(local: LocalCluster) -> None:
    async with connect(local.address) as cluster:
        before = {member.name: member.incarnation for member in cluster.members()}
        local.processes["coordinator"].kill()
        await local.restart("coordinator")
        await cluster.barrier("after-the-restart", 1)
        assert {member.name: member.incarnation for member in cluster.members()} == before


async def test_restart_of_nobody(local: LocalCluster) -> None:
    with pytest.raises(NotRegistered, match=r"no process 'worker-0'.*coordinator, parameter-server-0"):
        await local.restart("worker-0")


async def test_leaving_does_not_raise_for_what_is_already_gone() -> None:
    async with local_cluster(parameter_servers=1) as local:
        for process in local.processes.values():
            process.kill()
        token = local.address
        assert find_token([token]) == local.token
    assert find_token([token]) is None
    assert not any(process.alive for process in local.processes.values())


async def test_a_cluster_that_can_not_start_says_why_and_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # other tests have clusters of their own
    children = set(psutil.Process().children())
    with pytest.raises(
        PeerLost, match=r"coordinator ended with status 2.*refusing to serve plaintext on 1\.2\.3\.4"
    ):
        async with LocalCluster(LocalOptions(parameter_servers=1, bind="1.2.3.4:1")):
            pass
    assert not os.listdir(tmp_path)
    assert set(psutil.Process().children()) == children


@pytest.mark.parametrize(
    "arguments",
    [{"workers": -1}, {"stages": -2}, {"pipelines": -1}, {"replicas": 1}, {"parameter_servers": -1}],
)
def test_counts_that_can_not_be(arguments: dict[str, int]) -> None:
    with pytest.raises(ArgumentError, match=next(iter(arguments))):
        local_cluster(**arguments)


def test_a_kind_of_service_that_there_is_not() -> None:
    with pytest.raises(TypeError, match=r"local_cluster\(\) got an unexpected keyword argument 'worker'"):
        local_cluster(worker=1)  # type: ignore[call-arg]


def test_services_that_run_functions_are_told_what_to_import_and_share_the_cores() -> None:
    options = LocalOptions(
        2, workers=1, stages=2, pipelines=1, allreduce=1, imports=("a",), worker_flags=("-x",)
    )
    told = {name: (module, flags) for name, (module, flags, _) in options.services.items()}
    flags = ["--import", "a", "-x"]
    assert told == {
        "parameter-server-0": ("services.parameter_server", []),
        "parameter-server-1": ("services.parameter_server", []),
        "allreduce-0": ("services.allreduce", []),
        "worker-0": ("services.worker", flags),
        "stage-0": ("services.pipeline_stage", flags),
        "stage-1": ("services.pipeline_stage", flags),
        "pipeline-0": ("services.pipeline", flags),
    }
    assert options.computing == 5, "the driver and the allreduce service compute nothing that lasts"


async def test_stages_and_drivers_know_the_script_that_starts_them(tmp_path: Path) -> None:
    source = """
        import asyncio
        import psframework as psf

        @psf.remote
        def twice(x):
            return 2 * x

        async def main():
            async with psf.local_cluster(stages=1, pipelines=1) as local:
                async with psf.connect(local.address) as cluster:
                    print("twice", await cluster.rpc_all(["stage-0", "pipeline-0"], twice, (21,)), flush=True)

        if __name__ == "__main__":
            asyncio.run(main())
    """
    async with program(tmp_path, "script", source) as script:
        assert await script.line("twice") == "twice [42, 42]"
        assert await script.end(15) == 0


def test_lanes_that_do_not_exist() -> None:
    with pytest.raises(ConfigurationError, match="'inline,pigeon': name some of inline, striped, shm"):
        local_cluster(parameter_servers=1, lanes=["inline", "pigeon"])


def test_a_script_without_a_main_guard_is_not_run_again(tmp_path: Path) -> None:
    script = tmp_path / "unguarded.py"
    script.write_text(
        "import asyncio\n"
        "from psframework.cluster.local import local_cluster\n"
        "print('once', flush=True)\n"
        "async def main():\n"
        "    async with local_cluster(parameter_servers=1) as local:\n"
        "        print(len(local.processes))\n"
        "asyncio.run(main())\n"
    )
    result = subprocess.run(
        [sys.executable, script],
        capture_output=True,
        text=True,
        timeout=60,
        env=child_environment(),
        check=False,
    )
    assert result.stdout.split() == ["once", "2"], result.stderr


async def test_no_service_outlives_the_process_that_started_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # a process that is killed can't remove its folder
    source = """
        import asyncio
        from psframework.cluster.local import local_cluster
        async def main():
            async with local_cluster(parameter_servers=2) as local:
                print("pids", *(process.pid for process in local.processes.values()), flush=True)
                await asyncio.sleep(60)
        asyncio.run(main())
    """
    async with program(tmp_path, "owner", source) as owner:
        pids = (await owner.line("pids")).split()[1:]
        services = [psutil.Process(int(pid)) for pid in pids]
        owner.process.kill()
        _, alive = await asyncio.to_thread(psutil.wait_procs, services, 8)
        assert alive == []


async def test_processes_of_a_cluster_share_the_cores(local: LocalCluster) -> None:
    threads = {
        name: psutil.Process(process.pid).num_threads()
        for name, process in local.processes.items()
        if process.alive
    }
    assert threads
    assert max(threads.values()) < 60, threads
