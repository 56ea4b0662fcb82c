"""A service from its flags to its exit: bad flags, the order of its first lines, health, draining."""

import asyncio
import json
import os
import signal
import socket
import time
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from psframework.cluster.connect import connect
from psframework.cluster.local import LocalCluster, local_cluster
from psframework.cluster.process import ServiceProcess
from psframework.cluster.service import reachable
from psframework.errors import PeerLost
from psframework.rpc.deadline import Deadline
from psframework.rpc.process import cores


@pytest.fixture(scope="module")
async def local() -> AsyncIterator[LocalCluster]:
    async with local_cluster(parameter_servers=1) as cluster:
        yield cluster


async def fails(arguments: list[str], module: str = "services.parameter_server", **environment: str) -> str:
    process = ServiceProcess("service", module, arguments, environment=environment)
    process.start()
    try:
        with pytest.raises(PeerLost) as caught:
            await process.wait_serving(30, joined=True)
        assert process.returncode == 2
        assert not any("Traceback" in line for line in process.output)
        return str(caught.value)
    finally:
        await process.stop(5)


async def test_the_first_line_is_serving_on(local: LocalCluster) -> None:
    for process in local.processes.values():
        assert process.output[0] == f"serving on {process.address}"


async def test_a_port_in_use(local: LocalCluster) -> None:
    assert "is taken by another process" in await fails(["--bind", local.address])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--bind", "0.0.0.0:0"], "refusing to serve plaintext"),
        (["--bind", "nonsense"], "HOST:PORT"),
        (["--tls-dir", "/nowhere"], "psf certs"),
        (["--import", "no_such_module_here"], "--import no_such_module_here: ModuleNotFoundError"),
        (["--lease", "0.01", "--coordinator", "127.0.0.1:1"], "lease"),
        (["--lanes", "pigeon"], "pigeon"),
    ],
)
async def test_flags_that_do_not_fit(arguments: list[str], words: str) -> None:
    assert f"error: {words}" in (said := await fails(arguments)) or words in said


@pytest.mark.parametrize("bind", ["127.0.0.1:99999", "0.0.0.0:7070"])
async def test_a_bind_address_that_is_refused_leaves_no_state_behind(tmp_path: Path, bind: str) -> None:
    await fails(["--bind", bind], "services.coordinator", XDG_STATE_HOME=str(tmp_path))
    assert os.listdir(tmp_path) == []


async def test_a_coordinator_that_is_not_there() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        assert address in await fails(["--coordinator", address, "--join-timeout", "0.5"])


async def test_one_without_a_coordinator_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PSF_COORDINATOR", raising=False)
    told = asyncio.Event()
    loop = asyncio.get_running_loop()

    def listen(line: str) -> None:
        if "in no cluster" in line and "--coordinator" in line:
            loop.call_soon_threadsafe(told.set)

    process = ServiceProcess("alone", "services.parameter_server", [], on_line=listen)
    process.start()
    try:
        await asyncio.wait_for(told.wait(), 30)
        assert process.output[0].startswith("serving on ")
    finally:
        await process.stop(5)


async def test_modules_are_imported_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("print('imported as', __name__, flush=True)")
    process = ServiceProcess(
        "shard",
        "services.parameter_server",
        ["--import", "mine"],
        environment={"PYTHONPATH": path_with(tmp_path)},
    )
    process.start()
    try:
        await process.wait_serving(30)
        assert process.output[0] == "imported as mine"
    finally:
        await process.stop(5)


async def test_threads_and_allocator_as_seen_from_inside(tmp_path: Path) -> None:
    """N services on one machine: BLAS threads and allocator are set, not left to chance."""
    tell = "from psframework.rpc.process import facts\nprint('facts', json.dumps(facts()), flush=True)"
    (tmp_path / "tell.py").write_text(f"import json\n{tell}")
    arguments = ["--import", "tell", "--local-processes", "2"]
    environment = {"PYTHONPATH": path_with(tmp_path)}
    shards = [
        ServiceProcess(f"shard-{index}", "services.parameter_server", arguments, environment=environment)
        for index in range(2)
    ]
    try:
        for shard in shards:
            shard.start()
        for shard in shards:
            await shard.wait_serving(30)
            told = json.loads(shard.output[0].removeprefix("facts "))
            assert told["blas_threads"] == max(1, cores() // 2)
            assert told["allocator"] == "tuned"
            assert told["large_blocks_return_to_kernel"] in (False, None)
            assert told["switch_interval"] <= 0.0005
    finally:
        for shard in shards:
            await shard.stop(5)


def test_local_clusters_tell_their_processes_how_many_they_are(local: LocalCluster) -> None:
    arguments = local.processes["parameter-server-0"].arguments
    assert arguments[arguments.index("--local-processes") + 1] == "1"


def path_with(folder: Path) -> str:
    root = Path(__file__).parents[2]
    return os.pathsep.join([str(folder), str(root)])


async def test_sigterm_drains_and_exits_0_in_under_5_seconds() -> None:
    async with local_cluster(parameter_servers=1) as local:
        for name in ("parameter-server-0", "coordinator"):
            process = local.processes[name]
            began = time.monotonic()
            process.send_signal(signal.SIGTERM)
            assert await process.wait(10) == 0
            assert time.monotonic() - began < 5


async def test_one_that_was_fenced_ends_and_says_so() -> None:
    """It may hold what is out of date, and nobody sends it anything: only a new process can join."""
    async with local_cluster() as local:
        environment = {"PSF_TOKEN": local.token}
        arguments = ["--coordinator", local.address, "--name", "shard", "--lease", "1"]
        shard = ServiceProcess("shard", "services.parameter_server", arguments, environment=environment)
        shard.start()
        try:
            await shard.wait_serving(30, joined=True)
            shard.send_signal(signal.SIGSTOP)
            async with connect(local.address, token=local.token) as cluster:
                gone = Deadline.after(10)
                await cluster.membership.wait_for(lambda view: view.find("shard") is None, gone, "the fence")
            shard.send_signal(signal.SIGCONT)
            assert await shard.wait(10) == 2
            assert "error:" in shard.last_words
        finally:
            shard.send_signal(signal.SIGCONT)
            await shard.stop(5)


async def test_health_says_not_serving_until_it_has_joined(local: LocalCluster) -> None:
    """A name that a silent member holds makes the newcomer wait; meanwhile it must not look ready."""
    holder = local.processes["parameter-server-0"]
    holder.send_signal(signal.SIGSTOP)
    arguments = ["--coordinator", local.address, "--name", "parameter-server-0", "--join-timeout", "20"]
    token = {"PSF_TOKEN": local.token}
    newcomer = ServiceProcess("newcomer", "services.parameter_server", arguments, environment=token)
    newcomer.start()
    try:
        address = await newcomer.wait_serving(30)
        async with grpc.aio.insecure_channel(address) as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            reply = await stub.Check(health_pb2.HealthCheckRequest(), timeout=5)
            assert reply.status == health_pb2.HealthCheckResponse.NOT_SERVING
            call = channel.unary_unary("/psframework.proto.v1.ParameterServerService/ListTables")
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call(b"", timeout=5, metadata=(("authorization", f"Bearer {local.token}"),))
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    finally:
        holder.send_signal(signal.SIGCONT)
        await newcomer.stop(5)


def test_reachable() -> None:
    assert reachable("127.0.0.1:5") == "127.0.0.1:5"
    assert reachable("0.0.0.0:5") == f"{socket.gethostname()}:5"
    assert reachable("[::]:5") == f"{socket.gethostname()}:5"
