"""A member whose loop is held for long: nobody waits for it, and nobody cuts it off (PROTOCOLS 2)."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import fault_functions as faults
import pytest
import remote_functions as functions

import psframework as psf
from psframework.cluster.process import ServiceProcess
from psframework.cluster.script import import_path
from psframework.errors import PeerLost
from psframework.membership.coordinator import Coordinator
from psframework.membership.lease import LeaseOptions
from psframework.membership.servicer import CoordinatorServicer
from psframework.membership.store import MemoryStore
from psframework.membership.view import MemberState, View
from psframework.proto.v1.coordinator_pb2_grpc import add_CoordinatorServiceServicer_to_server
from psframework.rpc.deadline import Deadline
from psframework.rpc.security.credentials import Security
from psframework.rpc.serve import ServeOptions, serve

STALL_LIMIT = 2.0  # longer than a member takes to renew
HELD = 5.5


@pytest.fixture(scope="module")
async def address() -> AsyncIterator[str]:
    """A coordinator that soon calls a member stalled, and two workers."""
    async with AsyncExitStack() as stack:
        options = LeaseOptions(stall_limit=STALL_LIMIT)
        coordinator = await stack.enter_async_context(Coordinator(MemoryStore(), options=options))
        servicers = [(add_CoordinatorServiceServicer_to_server, CoordinatorServicer(coordinator))]
        quiet = ServeOptions(announce=False, drain_seconds=0.2)
        server = await stack.enter_async_context(
            serve(servicers=servicers, bind="127.0.0.1:0", security=Security.plaintext(), options=quiet)
        )
        for name in ("worker-0", "worker-1"):
            flags = ["--coordinator", server.address, "--name", name]
            flags += ["--import", "remote_functions,fault_functions"]
            worker = ServiceProcess(name, "services.worker", flags, environment={"PYTHONPATH": import_path()})
            worker.start()
            stack.push_async_callback(worker.stop, 5)
            await worker.wait_serving(30, joined=True)
        yield server.address


async def stalled(call: "asyncio.Future[object]") -> PeerLost:
    """What a call ends with, soon."""
    async with asyncio.timeout(HELD):
        with pytest.raises(PeerLost, match=r"worker-0 .*is stalled") as caught:
            await call
    assert (caught.value.peer, caught.value.reason) == ("worker-0", "stalled")
    return caught.value


async def seen(cluster: psf.Cluster, incarnation: int, state: MemberState) -> None:
    """Waits until a member is in that state, as far as this one knows."""

    def holds(view: View) -> bool:
        member = view.get(incarnation)
        return member is not None and member.state is state

    await cluster.membership.wait_for(holds, Deadline.after(10))


async def test_nobody_waits_for_it_and_it_comes_back(address: str) -> None:
    async with psf.connect(address, name="me") as me, psf.connect(address, name="new") as new:
        pid = await me.rpc_async("worker-0", functions.pid)
        assert await me.rpc_async("worker-1", functions.ask, ("worker-0", "remote_functions.pid")) == pid
        (before,) = [member for member in me.members() if member.name == "worker-0"]
        began = time.monotonic()
        held = me.rpc_async("worker-0", faults.hold_the_loop, (HELD,), timeout=0)
        behind = me.rpc_async("worker-0", functions.pid, timeout=0)
        nested = me.rpc_async("worker-1", functions.ask, ("worker-0", "remote_functions.pid"), timeout=0)
        assert (await stalled(held)).may_have_run
        await stalled(behind)
        await stalled(nested)
        assert not (await stalled(me.rpc_async("worker-0", functions.pid, timeout=0))).may_have_run
        await seen(new, before.incarnation, MemberState.STALLED)
        await stalled(new.rpc_async("worker-0", functions.pid, timeout=0))  # it has no session with it
        assert time.monotonic() - began < HELD, "they did not wait until it was back"
        for cluster in (me, new):
            await seen(cluster, before.incarnation, MemberState.LIVE)
            assert await cluster.rpc_async("worker-0", functions.pid, timeout=5) == pid
            back = cluster.rpc_async("worker-0", functions.ask, (cluster.name, "remote_functions.where"))
            assert await back == ("async", cluster.name, "worker-0")
        assert await me.rpc_async("worker-1", functions.ask, ("worker-0", "remote_functions.pid")) == pid
        assert await me.rpc_async("worker-0", functions.ask, ("worker-1", "remote_functions.where"))
        (after,) = [member for member in me.members() if member.name == "worker-0"]
        assert after.incarnation == before.incarnation
