"""Messages about references reach others, batched, and again until they are answered."""

import pytest
import rref_things as things
from rref_crew import Team, until

from psframework.errors import PeerLost
from psframework.proto.v1.rref_pb2 import ExchangeReply, ExchangeRequest
from psframework.rpc.deadline import Deadline
from psframework.rref import control
from psframework.rref.control import SERVICE
from psframework.rref.encoding import to_messages
from psframework.rref.ids import ForkId
from psframework.rref.messages import Delete


async def test_what_is_said_in_one_turn_goes_together(team: Team, monkeypatch: pytest.MonkeyPatch) -> None:
    ann, bob = await team.hire("ann"), await team.hire("bob")
    sizes: list[int] = []
    receive = bob.rrefs.table.receive
    monkeypatch.setattr(
        bob.rrefs.table, "receive", lambda peer, said: sizes.append(len(said)) or receive(peer, said)
    )
    rrefs = [ann.rrefs.remote("bob", things.Counter) for _ in range(100)]
    for rref in rrefs:
        await rref.confirmed_by_owner()
    for rref in rrefs:
        rref.close()
    await team.clean()
    assert sizes == [100]


async def test_nothing_is_remembered_of_those_who_owe_nothing(
    team: Team, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "FIRST_RETRY", 0.01)
    ann, _ = await team.hire("ann"), await team.hire("bob")
    async with ann.rrefs.remote("bob", things.Counter) as rref:
        await rref.confirmed_by_owner()
    await team.clean()
    await until(lambda: not ann.rrefs._control._lines)


async def test_repeated_over_lost_answers(team: Team, monkeypatch: pytest.MonkeyPatch) -> None:
    """The owner answers, and the answers are lost: they are asked for again."""
    ann, _, cat = [await team.hire(name) for name in ("ann", "bob", "cat")]
    receive, lost = ann.rrefs.table.receive, 3

    def forgetful(peer: object, said: list[object]) -> object:
        nonlocal lost
        lost -= bool(said)
        return receive(peer, said) if lost < 0 else []  # type: ignore[arg-type]

    rref = cat.rrefs.remote("bob", things.array, (3,))
    monkeypatch.setattr(ann.rrefs.table, "receive", forgetful)
    (value,) = await cat.rpc("ann", things.use, [rref])
    assert len(value) == 3
    assert lost < 0
    del rref
    await team.clean()


async def test_repeated_over_broken_sessions(team: Team) -> None:
    ann, bob = await team.hire("ann"), await team.hire("bob")
    rrefs = [ann.rrefs.remote("bob", things.Counter) for _ in range(20)]
    for rref in rrefs:
        await rref.confirmed_by_owner()
    for rref in rrefs:
        peer = ann.worker.agent.peer_for("bob")
        if peer is not None:
            peer.fail("closed", "cut by the test")
        rref.close()
    await team.clean()
    assert len(bob.rrefs.table) == 0


async def test_nobody_can_speak_for_another(team: Team) -> None:
    ann, bob = await team.hire("ann"), await team.hire("bob")
    rref = ann.rrefs.remote("bob", things.Counter)
    await rref.confirmed_by_owner()
    cat = await team.hire("cat")
    await cat.rpc("bob", things.use, [])
    peer = cat.worker.agent.peer_for("bob")
    assert peer is not None
    request = ExchangeRequest(messages=to_messages([Delete(ForkId(ann.me, 1))]))
    with pytest.raises(ValueError, match="speaks for"):
        await peer.call(f"/{SERVICE}/Exchange", request, ExchangeReply, deadline=Deadline.after(5))
    assert len(bob.rrefs.table) == 1


async def test_an_owner_that_never_answers_is_named(team: Team) -> None:
    ann, bob = await team.hire("ann"), await team.hire("bob")
    rref = ann.rrefs.remote("bob", things.Counter)
    await rref.confirmed_by_owner()
    await bob.worker.agent.close()
    team.book.known.pop("bob")  # nobody has declared it dead
    (problem,) = await ann.rrefs.close(timeout=0.5)
    assert "bob did not confirm that 1 references are deleted" in problem
    with pytest.raises(PeerLost):
        await ann.rpc("bob", things.use, [])


@pytest.mark.parametrize("replaced", [True, False])
async def test_an_owner_that_died_before_anybody_here_could_hear_of_it(
    team: Team, monkeypatch: pytest.MonkeyPatch, replaced: bool
) -> None:
    monkeypatch.setattr(control, "GONE_SECONDS", 0.3)
    ann, bob = await team.hire("ann"), await team.hire("bob")
    rref = ann.rrefs.remote("bob", things.Counter)
    await rref.confirmed_by_owner()
    old = team.book.known.pop("bob")
    await bob.worker.agent.close()
    if replaced:
        team.book.known["bob"] = old._replace(incarnation=old.incarnation + 10**6)
    await team.hire("cat")
    with pytest.raises(PeerLost, match="bob"):
        await ann.rpc("cat", things.use, [rref])
    await team.clean("cat")
