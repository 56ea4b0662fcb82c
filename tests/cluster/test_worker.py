"""A worker's own flags: how much it takes on, for whom, and how it ends."""

import asyncio
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc
import pytest
import remote_functions as functions
from grpc_reflection.v1alpha.reflection_pb2 import ServerReflectionRequest
from grpc_reflection.v1alpha.reflection_pb2_grpc import ServerReflectionStub

from psframework.cluster.connect import connect
from psframework.cluster.handle import Cluster
from psframework.cluster.local import LocalCluster, local_cluster
from psframework.cluster.process import ServiceProcess
from psframework.cluster.remoting import OFFERED
from psframework.cluster.script import import_path
from psframework.cluster.settings import WorkerSettings
from psframework.cluster.worker import options_of
from psframework.errors import PeerLost, PermissionDenied, RemoteError, ResourceExhausted
from psframework.rpc.functions.pool import default_threads


@pytest.fixture(scope="module")
async def local() -> AsyncIterator[LocalCluster]:
    async with local_cluster() as cluster:
        yield cluster


@asynccontextmanager
async def worker(local: LocalCluster, name: str, *flags: str) -> AsyncIterator[ServiceProcess]:
    arguments = ["--coordinator", local.address, "--name", name, "--import", "remote_functions", *flags]
    environment = {"PYTHONPATH": import_path(), "PSF_TOKEN": local.token}
    process = ServiceProcess(name, "services.worker", arguments, environment=environment)
    process.start()
    try:
        await process.wait_serving(30, joined=True)
        yield process
    finally:
        await process.stop(5)


async def refused(cluster: Cluster, name: str) -> PeerLost:
    """Calls until the signal has arrived there."""
    while True:
        try:
            await cluster.rpc_async(name, functions.add, (1, 1))
        except PeerLost as error:
            return error


def test_flags() -> None:
    options = options_of(WorkerSettings.load(max_running=2, queue=3))
    assert (options.threads, options.max_calls) == (2, 5)
    assert options_of(WorkerSettings.load()).threads == default_threads()
    settings = WorkerSettings.from_command_line(["--allow", "a:b,c:d", "--allow", "e:f"], "worker")
    assert settings.allow == ("a:b", "c:d", "e:f")


async def test_more_than_it_takes_on_is_refused_with_a_hint(local: LocalCluster) -> None:
    async with worker(local, "small", "--max-running", "1", "--queue", "2"):
        async with connect(local.address) as cluster:
            calls = [cluster.rpc_async("small", functions.block, (0.3,)) for _ in range(5)]
            ended = await asyncio.gather(*calls, return_exceptions=True)
            assert ended[:3] == ["blocked"] * 3
            for error in ended[3:]:
                assert isinstance(error, ResourceExhausted)
                assert error.retry_after > 0
            assert await cluster.rpc_async("small", functions.block, (0,)) == "blocked"


async def test_reflection_lists_what_members_do_for_each_other(local: LocalCluster) -> None:
    async with worker(local, "open"), connect(local.address) as cluster:
        members = [member for member in cluster.members() if member.name in ("open", cluster.name)]
        for member in members:
            async with grpc.aio.insecure_channel(member.addresses[0]) as channel:
                call = ServerReflectionStub(channel).ServerReflectionInfo(timeout=10)
                await call.write(ServerReflectionRequest(list_services=""))
                reply = await call.read()
                names = {service.name for service in reply.list_services_response.service}
                assert names >= set(OFFERED)
                for name in OFFERED:
                    await call.write(ServerReflectionRequest(file_containing_symbol=name))
                    assert (await call.read()).file_descriptor_response.file_descriptor_proto
                call.cancel()
        assert len(members) == 2


async def test_who_may_call_what(local: LocalCluster) -> None:
    rules = ["--allow", "trainer/boss:remote_functions.*", "--allow", "*:remote_functions.add"]
    async with worker(local, "guarded", *rules) as process:
        async with connect(local.address, name="boss") as boss, connect(local.address, name="me") as me:
            assert await boss.rpc_async("guarded", functions.where) == ("async", "guarded", "boss")
            assert await me.rpc_async("guarded", functions.add, (1, 2)) == 3
            with pytest.raises(
                PermissionDenied, match=r"me \(trainer\) may not call remote_functions\.where"
            ):
                await me.rpc_async("guarded", functions.where)
        (line,) = [line for line in process.output if "psframework.audit" in line]
        for words in ("event=refused", "what=remote_functions.where", "peer=me", "role=trainer"):
            assert words in line
        assert "certificate=none" in line


async def test_a_second_one_of_the_same_name_is_refused(local: LocalCluster) -> None:
    """pytorch#53202: the newcomer is told who has the name; the holder is undisturbed."""
    async with worker(local, "twin"), connect(local.address) as cluster:
        before = await cluster.rpc_async("twin", functions.pid)
        flags = ["--coordinator", local.address, "--name", "twin", "--join-timeout", "5"]
        newcomer = ServiceProcess(
            "newcomer", "services.worker", flags, environment={"PSF_TOKEN": local.token}
        )
        newcomer.start()
        try:
            with pytest.raises(PeerLost, match=r"(?s)newcomer ended with status 2.*'twin'"):
                await newcomer.wait_serving(30, joined=True)
        finally:
            await newcomer.stop(5)
        assert await cluster.rpc_async("twin", functions.pid) == before


async def test_it_drains(local: LocalCluster) -> None:
    """SIGTERM: what runs comes to its end, what is new is refused, and surely did not run."""
    async with worker(local, "ending") as process, connect(local.address) as cluster:
        running = cluster.rpc_async("ending", functions.sleep, (1.0,))
        assert await cluster.rpc_async("ending", functions.add, (1, 1)) == 2
        process.send_signal(signal.SIGTERM)

        assert not (await refused(cluster, "ending")).may_have_run
        assert not running.done()
        assert await running == "slept"
        assert await process.wait(10) == 0


async def test_it_drains_generators_that_nobody_reads_at_the_moment(local: LocalCluster) -> None:
    async with worker(local, "streaming") as process, connect(local.address) as cluster:
        stream = cluster.rpc_stream("streaming", functions.numbers, (2000,))
        items = [await anext(stream)]
        process.send_signal(signal.SIGTERM)
        await refused(cluster, "streaming")
        await asyncio.sleep(0.3)
        items += [item async for item in stream]
        assert items == list(range(2000))
        assert await process.wait(2) == 0  # not only after the time for draining


async def test_functions_that_hang_in_threads_do_not_keep_it(local: LocalCluster) -> None:
    async with worker(local, "stuck") as process, connect(local.address) as cluster:
        calls = [cluster.rpc_async("stuck", functions.block, (60,)) for _ in range(3)]
        assert await cluster.rpc_async("stuck", functions.add, (1, 1)) == 2
        start = time.monotonic()
        process.send_signal(signal.SIGTERM)
        assert await process.wait(10) == 0
        assert time.monotonic() - start < 5
        for call in calls:
            with pytest.raises(PeerLost):
                await call


@pytest.mark.parametrize("awaited", [True, False])
async def test_sys_exit_in_a_task_of_a_function_is_the_calls_error_at_most(
    local: LocalCluster, awaited: bool
) -> None:
    async with worker(local, "exiting"), connect(local.address) as cluster:
        before = await cluster.rpc_async("exiting", functions.pid)
        call = cluster.rpc_async("exiting", functions.exit_in_a_task, (awaited,))
        if awaited:
            with pytest.raises(RemoteError, match="SystemExit: 3"):
                await call
        else:
            assert await call == "went on"
        assert await cluster.rpc_async("exiting", functions.pid) == before


@pytest.mark.parametrize(
    ("flags", "words"),
    [(["--allow", "nonsense"], "ROLE:FUNCTION"), (["--max-running", "0"], "--max-running")],
)
async def test_flags_that_do_not_fit(flags: list[str], words: str) -> None:
    process = ServiceProcess("worker", "services.worker", flags)
    process.start()
    try:
        with pytest.raises(PeerLost, match=words):
            await process.wait_serving(30)
        assert process.returncode == 2
        assert not any("Traceback" in line for line in process.output)
    finally:
        await process.stop(5)
