"""RRefService on the wire: what it takes, and from whom."""

from typing import Any

import grpc
import pytest
import rref_things as things
from rref_crew import Member, Team

from psframework.errors import ContextClosed, DeadlineExceeded, Evicted, WireError
from psframework.proto.v1 import rref_pb2 as pb
from psframework.proto.v1.remote_pb2 import InvokeRequest, OpenStreamRequest
from psframework.proto.v1.rref_pb2_grpc import RRefServiceStub
from psframework.rpc.deadline import Deadline
from psframework.rpc.serve import serve
from psframework.rpc.values import arguments
from psframework.rpc.values.journey import Journey
from psframework.rref.control import SERVICE
from psframework.rref.encoding import fork_message, rref_message
from psframework.rref.ids import ForkId, RRefId
from psframework.rref.messages import Delete
from psframework.rref.user import Fork
from psframework.testing.workers import PLAINTEXT, QUIET


async def ask(member: Member, to: str, method: str, request: Any, response: Any) -> Any:
    await member.rpc(to, things.use, [])
    peer = member.worker.agent.peer_for(to)
    assert peer is not None
    reply, _ = await peer.call(f"/{SERVICE}/{method}", request, response, deadline=Deadline.after(5))
    return reply


def creation(rref: RRefId, fork: ForkId | None) -> pb.CreateRequest:
    call = InvokeRequest(function="rref_things.Counter", arguments=arguments.encode_call((), {}, Journey()))
    return pb.CreateRequest(rref=rref_message(rref), fork=fork_message(fork) if fork else None, call=call)


async def test_a_fork_is_its_holders_own(team: Team) -> None:
    ann, bob = await team.hire("ann"), await team.hire("bob")
    for fork, text in ((ForkId(bob.me, 1), "not one of ann's"), (None, "only the owner itself")):
        with pytest.raises(WireError, match=text):
            await ask(ann, "bob", "Create", creation(RRefId(ann.me, 1), fork), pb.CreateReply)
    request = pb.FetchRequest(rref=rref_message(RRefId(ann.me, 1)))
    with pytest.raises(WireError, match="only the owner itself"):
        await ask(ann, "bob", "Fetch", request, pb.FetchReply)
    with pytest.raises(WireError, match="taken, or another"):
        await ask(ann, "bob", "Create", creation(RRefId(bob.me, 1), ForkId(ann.me, 1)), pb.CreateReply)
    assert len(bob.rrefs.table) == 0


async def test_a_value_is_for_those_who_refer_to_it(team: Team) -> None:
    """Its name, which `psf rref list` tells to everybody, opens nothing."""
    ann, bob = await team.hire("ann"), await team.hire("bob")
    secret = bob.rrefs.rref("secret")
    own = ann.rrefs.remote("bob", things.Counter)
    await own.confirmed_by_owner()
    assert isinstance(own.ref, Fork)
    names: dict[str, Any] = {"rref": rref_message(secret.id), "fork": fork_message(own.ref.id)}
    call = InvokeRequest(function="upper", arguments=arguments.encode_call((), {}, Journey()))
    for method, request, reply in (
        ("Fetch", pb.FetchRequest(**names), pb.FetchReply),
        ("CallMethod", pb.CallMethodRequest(call=call, **names), pb.CallMethodReply),
        (
            "StreamMethod",
            pb.StreamMethodRequest(open=OpenStreamRequest(call=call), **names),
            pb.StreamMethodReply,
        ),
    ):
        with pytest.raises(ContextClosed, match=f"does not refer to RRef {secret.id}"):
            await ask(ann, "bob", method, request, reply)
    made = pb.CreateRequest(
        rref=rref_message(RRefId(ann.me, 2)), fork=fork_message(ForkId(ann.me, 2)), call=call
    )
    made.on.CopyFrom(names["rref"])
    made.on_fork.CopyFrom(names["fork"])
    with pytest.raises(ContextClosed, match=f"does not refer to RRef {secret.id}"):
        await ask(ann, "bob", "Create", made, pb.CreateReply)


async def test_nobody_else_needs_no_fork(team: Team) -> None:
    ann, bob = await team.hire("ann"), await team.hire("bob")
    counter = bob.rrefs.remote("bob", things.Counter, (1,))
    await counter.confirmed_by_owner()
    request = creation(RRefId(ann.me, 1), ForkId(ann.me, 1))
    request.call.function = "add"
    request.on.CopyFrom(rref_message(counter.id))
    with pytest.raises(WireError, match="only the owner itself"):
        await ask(ann, "bob", "Create", request, pb.CreateReply)
    assert counter.local_value().value == 1


async def test_what_was_given_up_is_not_begun(team: Team) -> None:
    ann, bob = await team.hire("ann"), await team.hire("bob")
    fork = ForkId(ann.me, 1)
    bob.rrefs.table.receive(ann.worker.agent.identity, Delete(fork))
    with pytest.raises(DeadlineExceeded, match="given up"):
        await ask(ann, "bob", "Create", creation(RRefId(ann.me, 1), fork), pb.CreateReply)
    assert things.made == []


async def test_the_dead_get_nothing(team: Team) -> None:
    ann, bob = await team.hire("ann"), await team.hire("bob")
    rref = ann.rrefs.remote("bob", things.Counter)
    await rref.confirmed_by_owner()
    bob.rrefs.lost(ann.worker.agent.identity, "lease")  # a mistake: ann lives
    with pytest.raises(Evicted, match="join again"):
        await ann.rrefs.remote("bob", things.Counter).confirmed_by_owner()
    request = pb.FetchRequest(rref=rref_message(rref.id), fork=fork_message(ForkId(ann.me, 1)))
    with pytest.raises(Evicted, match="join again"):
        await ask(ann, "bob", "Fetch", request, pb.FetchReply)
    assert len(bob.rrefs.table) == 0


async def test_strangers_without_a_session(team: Team) -> None:
    bob = await team.hire("bob")
    agent = bob.worker.agent
    async with (
        serve(agent.handlers(), bind="127.0.0.1:0", security=PLAINTEXT, options=QUIET) as server,
        grpc.aio.insecure_channel(server.address) as channel,
    ):
        stub: Any = RRefServiceStub(channel)
        reply = await stub.ListRRefs(pb.ListRRefsRequest(), timeout=5)
        assert not reply.rrefs
        for call, request in (
            (stub.Exchange, pb.ExchangeRequest()),
            (stub.Fetch, pb.FetchRequest()),
            (stub.Create, creation(RRefId(1, 1), ForkId(0, 1))),
        ):
            with pytest.raises(grpc.aio.AioRpcError, match="session"):
                await call(request, timeout=5)


async def test_results_of_methods_may_be_references(team: Team) -> None:
    ann, _ = await team.hire("ann"), await team.hire("bob")
    rref = ann.rrefs.remote("bob", things.Holder)
    mine, first = ann.rrefs.rref("mine"), rref.remote().put(1)
    assert await first.to_here() == 1
    await rref.rpc_async().put(mine)
    back = await rref.rpc_async().get()
    assert back.is_owner() and back.local_value() == "mine"
    del mine, back
    assert len(ann.rrefs.table) == 1  # bob's object holds it
    await rref.rpc_async().put(None)
    del rref, first
    await team.clean()
