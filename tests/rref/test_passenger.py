"""RRefs in arguments and results, between all kinds of ends."""

import asyncio

import pytest
import rref_things as things
from rref_crew import Member, Team, until

from psframework import nn
from psframework.errors import ArgumentError, PeerLost, PermissionDenied, WireError
from psframework.proto.v1.rref_pb2 import RRefHandle
from psframework.rpc.limits import AgentOptions
from psframework.rpc.registry import remote
from psframework.rpc.values.journey import Journey
from psframework.rref.passenger import PASSENGER
from psframework.wire.lanes import parse


@remote(roles=("boss",))
class OnlyBoss(nn.Module):
    """Others may not make one."""


async def three(team: Team) -> tuple[Member, Member, Member]:
    ann, bob, cat = [await team.hire(name) for name in ("ann", "bob", "cat")]
    return ann, bob, cat


async def test_owner_to_user_to_user(team: Team) -> None:
    ann, *_ = await three(team)
    mine = ann.rrefs.rref([1, 2])
    assert await ann.rpc("bob", things.use, [mine, mine]) == [[1, 2], [1, 2]]
    there = ann.rrefs.remote("bob", things.array, (3,))
    (copied,) = await ann.rpc("cat", things.use, {"deep": there})
    assert copied.tolist() == [0, 1, 2]
    del mine, there
    await team.clean()


async def test_deep_in_arguments_and_results(team: Team) -> None:
    ann, _ = await team.hire("ann"), await team.hire("bob")
    mine, there = ann.rrefs.rref("mine"), ann.rrefs.remote("bob", things.array, (3,))
    back = await ann.rpc("bob", things.give_back, {"a": [(mine, 1)], "b": {"c": there}})
    assert back["a"][0][0].is_owner()
    assert back["a"][0][0].local_value() == "mine"
    assert not back["b"]["c"].is_owner()
    assert (await back["b"]["c"].to_here()).tolist() == [0, 1, 2]
    del mine, there, back
    await team.clean()


async def test_taking_over_needs_no_room_for_what_comes_along(team: Team) -> None:
    """Each fills the window of the next one, which then has a word with the one after it."""
    options = AgentOptions(lanes=parse("inline,striped"), window_bytes=256 * 1024)
    names = ["ann", "bob", "cat"]
    crew = [await team.hire(name, options=options) for name in names]
    loads = [[crew[at].rrefs.remote(names[at - 1], things.Counter, (1,)), bytes(100_000)] for at in range(3)]
    await asyncio.gather(*(load[0].confirmed_by_owner() for load in loads))
    assert (
        await asyncio.gather(*(crew[at].rpc(names[at - 2], things.amount, []) for at in range(3))) == [0] * 3
    )
    sent = [crew[at].rpc(names[at - 2], things.amount, loads[at]) for at in range(3) for _ in range(10)]
    assert await asyncio.gather(*sent) == [2] * 30
    del loads, sent
    await team.clean()


async def test_beside_modules(team: Team) -> None:
    """Which are read in a thread; references are taken over on the loop all the same."""
    ann, _ = await team.hire("ann"), await team.hire("bob")
    mine, there = ann.rrefs.rref("mine"), ann.rrefs.remote("bob", things.array, (3,))
    back = await ann.rpc("bob", things.give_back, [mine, nn.Linear(1, 2), {"b": there}])
    assert back[0].local_value() == "mine" and type(back[1]) is nn.Linear
    assert (await back[2]["b"].to_here()).tolist() == [0, 1, 2]
    with pytest.raises(PermissionDenied, match="OnlyBoss"):
        await ann.rpc("bob", things.give_back, [mine, nn.ReLU(), there, OnlyBoss()])
    del mine, there, back
    await team.clean()


async def test_user_to_owner(team: Team) -> None:
    ann, _ = await team.hire("ann"), await team.hire("bob")
    counters = [ann.rrefs.remote("bob", things.Counter, (n,)) for n in range(4)]
    assert await counters[0].rpc_async().total(counters) == 6  # total uses local_value
    del counters
    await team.clean()


async def test_passed_on_at_once(team: Team) -> None:
    """The child may ask the owner before the creation has arrived there."""
    ann, *_ = await three(team)
    for round in range(20):
        rref = ann.rrefs.remote("bob", things.array, (round,))
        calls = [ann.rpc(name, things.use, [rref]) for name in ("cat", "bob", "ann")]
        del rref
        for (value,) in await asyncio.gather(*calls):
            assert len(value) == round
    await team.clean()


async def test_the_holder_may_keep_it(team: Team) -> None:
    ann, bob, cat = await three(team)
    rref = ann.rrefs.remote("bob", things.array, (3,))
    await ann.rpc("cat", things.keep, [rref])
    del rref
    await team.clean("ann")
    assert len(bob.rrefs.table) == 1
    assert (await things.kept[0].to_here()).tolist() == [0, 1, 2]
    assert bob.rrefs.list()[0].holders[0].name == "cat"
    await cat.rpc("cat", things.forget)
    await team.clean()


async def test_a_function_that_fails_leaves_nothing(team: Team) -> None:
    ann, *_ = await three(team)
    rref, mine = ann.rrefs.remote("bob", things.Counter), ann.rrefs.rref(1)
    with pytest.raises(ValueError, match="used nothing"):
        await ann.rpc("cat", things.fail, [rref, mine])
    with pytest.raises(LookupError):
        await ann.rpc("cat", "rref_things.nothing", [rref, mine])
    with pytest.raises(TypeError, match=r"args\[0\]\[2\]"):
        ann.rpc("cat", things.use, [rref, mine, object()])
    for call in (ann.worker.remote.rpc_async, ann.worker.remote.rpc_stream):
        with pytest.raises(ValueError, match="timeout"):
            call("cat", things.use, ([rref, mine],), timeout=-1)
        with pytest.raises(ArgumentError):
            call("cat", things.use, ([rref, mine],), metadata={"number": 1})  # type: ignore[dict-item]
    del rref, mine
    await team.clean()


async def test_results_that_cannot_be_read_leave_nothing(team: Team) -> None:
    """References behind what can't be read are never reached; their sender lets go all the same."""
    ann, bob = await team.hire("ann"), await team.hire("bob")
    things.kept += [bob.rrefs.rref(1), bob.rrefs.remote("ann", things.Counter)]
    await things.kept[1].confirmed_by_owner()
    with pytest.raises(WireError, match="only one"):
        await ann.rpc("bob", things.behind)
    with pytest.raises(WireError, match="only one"):
        await ann.rrefs.remote("bob", things.behind).to_here()
    stream = ann.worker.remote.rpc_stream("bob", things.behind_one_by_one)
    with pytest.raises(WireError, match="only one"):
        await anext(stream)
    del stream
    things.kept.clear()
    await team.clean()


async def test_calls_that_are_cancelled_leave_nothing(team: Team) -> None:
    ann, *_ = await three(team)
    rref, mine = ann.rrefs.remote("bob", things.Counter), ann.rrefs.rref(1)
    await rref.confirmed_by_owner()
    for turns in range(8):
        calls = [ann.rpc(name, things.give_back, [rref, mine]) for name in ("cat", "bob")]
        for _ in range(turns):
            await asyncio.sleep(0.0005)
        for call in calls:
            call.cancel()
    del rref, mine, calls, call
    await team.clean()


async def test_deadlines_that_pass_leave_nothing(team: Team) -> None:
    ann, *_ = await three(team)
    rref, mine = ann.rrefs.remote("bob", things.Counter), ann.rrefs.rref(1)
    await asyncio.gather(rref.confirmed_by_owner(), ann.rpc("cat", things.use, []))
    for timeout in (0.0001, 0.001, 0.002, 0.005, 0.01):
        try:
            await ann.rpc("cat", things.give_back, [rref, mine], timeout=timeout)
        except TimeoutError:
            pass
    del rref, mine
    await team.clean()


async def test_many_in_one_message(team: Team) -> None:
    ann, *_ = await three(team)
    rrefs = [ann.rrefs.remote("bob", things.array, (n,)) for n in range(300)]
    values = await ann.rpc("cat", things.use, rrefs)
    assert [len(value) for value in values] == list(range(300))
    del rrefs
    await team.clean()


async def test_a_session_that_ends_puts_replies_in_doubt(team: Team) -> None:
    """A reply with a reference is lost: its sender asks, over a new session, and lets go."""
    ann, bob = await team.hire("ann"), await team.hire("bob")
    mine = bob.rrefs.rref("kept")
    await ann.rpc("bob", things.use, [])
    PASSENGER.depart(mine, Journey(ann.worker.agent.identity, is_reply=True))  # it left, and never came
    assert len(bob.account.outgoing) == 1
    peer = bob.worker.agent.peer_for("ann")
    assert peer is not None
    peer.fail("closed", "cut by the test")
    await until(lambda: len(bob.account.outgoing) == 0)
    assert ann.account.incoming.tombstones == 0
    del mine
    await team.clean()


async def test_a_lost_answer_of_an_idempotent_call(team: Team) -> None:
    """Its references were taken over and can't be again: it is not repeated."""
    ann, _ = await team.hire("ann"), await team.hire("bob")
    call = ann.rpc("bob", things.idempotent, ann.rrefs.rref(1))
    await until(lambda: things.made == ["idempotent"])
    peer = ann.worker.agent.peer_for("bob")
    assert peer is not None
    peer.fail("closed", "cut by the test")
    with pytest.raises(PeerLost, match="cut"):
        await call
    del call
    await team.clean()


async def test_nowhere_to_go(team: Team) -> None:
    ann = await team.hire("ann")
    with pytest.raises(PeerLost, match="living members"):
        PASSENGER.depart(ann.rrefs.rref(1), Journey())
    with pytest.raises(PeerLost):
        ann.rpc("nobody", things.use, [ann.rrefs.rref(1)])
    await team.clean()


async def test_what_is_no_reference_is_refused(team: Team) -> None:
    ann, bob = await team.hire("ann"), await team.hire("bob")
    journey = Journey(bob.worker.agent.identity, outgoing=False)
    with pytest.raises(WireError, match="can't be read"):
        PASSENGER.arrive(b"\xff\xff", journey)
    with pytest.raises(WireError, match="another process"):
        PASSENGER.arrive(RRefHandle(receiver=ann.me).SerializeToString(), journey)
    stranger = RRefHandle(receiver=10**9)
    stranger.hold.sender = bob.me
    with pytest.raises(WireError, match="not this process"):
        PASSENGER.arrive(stranger.SerializeToString(), journey)


async def test_a_lost_sender(team: Team) -> None:
    """The value is gone with the only process that referred to it: the function does not start."""
    ann, bob, _ = await three(team)
    rref = ann.rrefs.remote("bob", things.Counter)
    await rref.confirmed_by_owner()
    bob.rrefs.lost(ann.worker.agent.identity, "lease")
    assert len(bob.rrefs.table) == 0
    with pytest.raises(PeerLost, match="gone"):
        await ann.rpc("cat", things.keep, [rref])
    assert things.kept == []
