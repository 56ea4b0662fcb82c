"""What every service that runs functions does, whatever its role: checked on real processes."""

import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc
import pytest
import remote_functions as functions
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from psframework.cluster.connect import connect
from psframework.cluster.local import LocalCluster, local_cluster
from psframework.cluster.process import ServiceProcess
from psframework.cluster.script import import_path
from psframework.errors import PeerLost
from psframework.rpc.deadline import Deadline


@asynccontextmanager
async def running(module: str, *flags: str, joined: bool = False) -> AsyncIterator[ServiceProcess]:
    """A process of a service that knows `remote_functions`."""
    arguments = ["--import", "remote_functions", *flags]
    process = ServiceProcess("service", module, arguments, environment={"PYTHONPATH": import_path()})
    process.start()
    try:
        await process.wait_serving(30, joined=joined)
        yield process
    finally:
        await process.stop(5)


@asynccontextmanager
async def member(local: LocalCluster, module: str, *flags: str) -> AsyncIterator[ServiceProcess]:
    """One that has joined a local cluster."""
    own = ("--coordinator", local.address, "--token-file", str(local.token_file))
    async with running(module, *own, *flags, joined=True) as process:
        yield process


async def check_alone(module: str) -> None:
    """In no cluster it says where it serves first of all, is healthy, and shows what it serves."""
    async with running(module) as process:
        assert process.output[0] == f"serving on {process.address}"
        async with grpc.aio.insecure_channel(process.address) as channel:
            request = health_pb2.HealthCheckRequest()
            health = await health_pb2_grpc.HealthStub(channel).Check(request, timeout=10, wait_for_ready=True)
            assert health.status == health_pb2.HealthCheckResponse.SERVING
            call = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo(timeout=10)
            await call.write(reflection_pb2.ServerReflectionRequest(list_services=""))
            names = {service.name for service in (await call.read()).list_services_response.service}
            assert {"psframework.proto.v1.RemoteService", "psframework.proto.v1.CallService"} <= names
            call.cancel()
        process.send_signal(signal.SIGTERM)
        assert await process.wait(5) == 0


async def check_member(module: str, role: str, name: str) -> None:
    """It joins by the name of its role, runs functions, keeps values, and ends in time whatever runs."""
    async with local_cluster() as local, member(local, module) as process:
        async with connect(local.address) as cluster:
            (found,) = cluster.members(role=role)
            assert (found.name, found.addresses) == (name, (process.address,))
            assert f"joined as {name}" in process.output
            assert await cluster.rpc_async(name, functions.where) == ("async", name, cluster.name)
            async with cluster.remote(name, functions.Counter, (40,)) as counter:
                assert await counter.rpc_async().add(2) == 42
            stuck = cluster.rpc_async(name, functions.block, (60,))
            assert await cluster.rpc_async(name, functions.add, (1, 2)) == 3
            began = time.monotonic()
            process.send_signal(signal.SIGTERM)
            assert await process.wait(10) == 0
            assert time.monotonic() - began < 5
            await cluster.membership.wait_for(lambda view: view.find(name) is None, Deadline.after(8))
            with pytest.raises(PeerLost, match=name):
                await stuck
