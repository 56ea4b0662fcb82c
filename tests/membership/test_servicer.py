"""The coordinator's service through a stock stub: what another language would see."""

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager

import grpc
import pytest

from psframework.errors import ArgumentError, Evicted, PermissionDenied, StaleTerm
from psframework.membership.coordinator import Coordinator
from psframework.membership.servicer import CoordinatorServicer
from psframework.membership.store import MemoryStore
from psframework.proto.v1 import coordinator_pb2 as pb
from psframework.proto.v1.coordinator_pb2_grpc import (
    CoordinatorServiceStub,
    add_CoordinatorServiceServicer_to_server,
)
from psframework.rpc.security.certificates import init, issue
from psframework.rpc.security.credentials import Security
from psframework.rpc.security.identity import ANY_NAME
from psframework.rpc.serve import ServeOptions, serve
from psframework.rpc.status import from_rpc_error


@pytest.fixture
async def stub(served):
    async with grpc.aio.insecure_channel(served.addresses[0]) as channel:
        yield CoordinatorServiceStub(channel)


async def refused(call) -> Exception:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return from_rpc_error(caught.value)


async def test_a_membership_by_hand(stub, served) -> None:
    joined = await stub.Join(pb.JoinRequest(role="worker", lease_seconds=5.0, addresses=["h:1"]))
    assert joined.term == 1 and joined.member.name == "worker-0" and joined.member.addresses == ["h:1"]
    assert joined.member.state == pb.MEMBER_STATE_LIVE
    number = joined.member.incarnation
    stream = stub.WatchView(pb.WatchViewRequest(incarnation=number))
    first = await stream.read()
    assert first.complete and [member.name for member in first.changed] == ["worker-0"]
    renewed = await stub.Renew(pb.RenewRequest(incarnation=number, tick=1))
    assert (renewed.term, renewed.lease_seconds, renewed.view) == (1, 5.0, first.number)
    assert len((await stub.ListMembers(pb.ListMembersRequest())).members) == 1
    await stub.Leave(pb.LeaveRequest(incarnation=number))
    gone = await stream.read()
    assert not gone.complete and gone.departed[0].reason == pb.DEPARTURE_REASON_LEFT
    assert await stub.Leave(pb.LeaveRequest(incarnation=number))
    stream.cancel()


async def test_keys_by_hand(stub) -> None:
    assert not (await stub.GetKey(pb.GetKeyRequest(key="k"))).HasField("entry")
    put = await stub.PutKey(pb.PutKeyRequest(key="k", value=b"1", expected_revision=0))
    assert put.written and put.entry.value == b"1"
    again = await stub.PutKey(pb.PutKeyRequest(key="k", value=b"2", expected_revision=0))
    assert not again.written and again.entry.value == b"1"
    stream = stub.WatchKeys(pb.WatchKeysRequest(prefix="k"))
    assert (await stream.read()).complete
    listed = await stub.ListKeys(pb.ListKeysRequest())
    assert [entry.key for entry in listed.entries] == ["k"] and listed.revision == put.entry.revision
    assert (await stub.DeleteKey(pb.DeleteKeyRequest(key="k"))).deleted
    assert (await stream.read()).deleted == ["k"]
    stream.cancel()


async def test_errors_have_classes(stub) -> None:
    assert isinstance(await refused(stub.Join(pb.JoinRequest(role="a b", lease_seconds=5))), ArgumentError)
    assert isinstance(await refused(stub.Join(pb.JoinRequest(role="w"))), ArgumentError)  # no lease
    assert isinstance(await refused(stub.Renew(pb.RenewRequest(incarnation=9))), Evicted)
    assert isinstance(await refused(stub.PutKey(pb.PutKeyRequest(key="k", writer=9))), Evicted)
    assert isinstance(await refused(stub.DeleteKey(pb.DeleteKeyRequest(key="k", writer=9))), Evicted)
    barrier = pb.EnterBarrierRequest(name="b", count=1, incarnation=9, entry=1)
    assert isinstance(await refused(stub.EnterBarrier(barrier)), Evicted)
    stream = stub.WatchView(pb.WatchViewRequest(incarnation=9))
    assert isinstance(await refused(stream.read()), Evicted)


async def test_whoever_saw_a_newer_term_is_told(stub) -> None:
    for call in (
        stub.Renew(pb.RenewRequest(incarnation=1, term=2)),
        stub.ListMembers(pb.ListMembersRequest(term=2)),
        stub.WatchView(pb.WatchViewRequest(term=2)).read(),
        stub.WatchKeys(pb.WatchKeysRequest(term=2)).read(),
    ):
        error = await refused(call)
        assert isinstance(error, StaleTerm) and "term 1" in str(error)


async def test_a_closed_stream_is_noticed(stub, served) -> None:
    joined = await stub.Join(pb.JoinRequest(role="worker", lease_seconds=60.0))
    stream = stub.WatchView(pb.WatchViewRequest(incarnation=joined.member.incarnation))
    await stream.read()
    lease = served.coordinator.registry.leases._leases[joined.member.incarnation]
    assert lease.streams
    stream.cancel()
    async with asyncio.timeout(5):
        while lease.streams:
            await served.coordinator.ticked.wait()
    assert lease.closed_at is not None


async def test_a_stopping_coordinator_frees_its_barriers(start) -> None:
    async with start(MemoryStore()) as served:
        async with grpc.aio.insecure_channel(served.addresses[0]) as channel:
            stub = CoordinatorServiceStub(channel)
            joined = await stub.Join(pb.JoinRequest(role="w", job="j", lease_seconds=5.0))
            waiting = stub.EnterBarrier(
                pb.EnterBarrierRequest(name="b", count=2, incarnation=joined.member.incarnation, entry=1)
            )
            while not served.coordinator.barriers._futures:
                await served.coordinator.ticked.wait()
            served.coordinator.suspend()
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await waiting
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


@asynccontextmanager
async def caller(authority, out, port: int, role: str, name: str = ANY_NAME):
    """A stub whose certificate is of that role and name."""
    security = Security.from_files(issue(authority, role, name, out=out / f"{role}-{name.strip('*')}"))
    async with security.channel(f"127.0.0.1:{port}", role="coordinator") as channel:
        yield CoordinatorServiceStub(channel)


async def test_nobody_acts_for_another_member(tmp_path) -> None:
    init(tmp_path / "ca")
    server_tls = Security.from_files(issue(tmp_path / "ca", "coordinator", out=tmp_path / "server"))
    async with Coordinator(MemoryStore()) as coordinator, AsyncExitStack() as stack:
        mounted = (add_CoordinatorServiceServicer_to_server, CoordinatorServicer(coordinator))
        options = ServeOptions(announce=False, idle=lambda: True)
        server = await stack.enter_async_context(
            serve(servicers=[mounted], bind="127.0.0.1:0", security=server_tls, options=options)
        )
        enter = stack.enter_async_context
        shard = await enter(caller(tmp_path / "ca", tmp_path, server.port, "parameter-server", "ps-7"))
        worker = await enter(caller(tmp_path / "ca", tmp_path, server.port, "worker"))
        joined = await shard.Join(pb.JoinRequest(role="parameter-server", lease_seconds=5.0))
        assert joined.member.name == "ps-7"  # its certificate is for no other name
        number = joined.member.incarnation
        for call in (
            worker.Leave(pb.LeaveRequest(incarnation=number)),
            worker.Renew(pb.RenewRequest(incarnation=number)),
            worker.PutKey(pb.PutKeyRequest(key="k", writer=number)),
            worker.DeleteKey(pb.DeleteKeyRequest(key="k", writer=number)),
            worker.EnterBarrier(pb.EnterBarrierRequest(name="b", count=1, incarnation=number)),
            worker.WatchView(pb.WatchViewRequest(incarnation=number)).read(),
        ):
            error = await refused(call)
            assert isinstance(error, PermissionDenied) and "'parameter-server'" in str(error)
        assert coordinator.view.find("ps-7") is not None
        await shard.Renew(pb.RenewRequest(incarnation=number))
        await shard.Leave(pb.LeaveRequest(incarnation=number))
        assert coordinator.view.find("ps-7") is None
