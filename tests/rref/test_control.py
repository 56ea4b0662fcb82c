"""Messages about references reach others, batched, and again until they are answered."""

import asyncio
from typing import Any

import pytest
import rref_things as things
from rref_crew import Team, until

from psframework.errors import Evicted, PeerLost
from psframework.proto.v1.rref_pb2 import ExchangeReply, ExchangeRequest, ReferenceMessage
from psframework.rpc.call import PeerInfo
from psframework.rpc.deadline import Deadline
from psframework.rref import control, servicer
from psframework.rref.control import SERVICE
from psframework.rref.encoding import to_messages
from psframework.rref.ids import ForkId
from psframework.rref.messages import Delete, Deleted, Message


async def test_what_is_said_in_one_turn_goes_together(team: Team, monkeypatch: pytest.MonkeyPatch) -> None:
    ann, _ = await team.hire("ann"), await team.hire("bob")
    sizes: list[int] = []
    heed = servicer.heed
    monkeypatch.setattr(
        servicer, "heed", lambda table, peer, said: sizes.append(len(said)) or heed(table, peer, said)
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

    def forgetful(peer: PeerInfo, said: Message) -> list[Message]:
        nonlocal lost
        lost -= 1
        return receive(peer, said) if lost < 0 else []

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
    own = ForkId(cat.me, 1), ForkId(cat.me, 2)
    said = to_messages([Delete(own[0]), Delete(ForkId(ann.me, 1)), Delete(own[1])])
    request = ExchangeRequest(messages=[ReferenceMessage(), *said])
    reply, _ = await peer.call(f"/{SERVICE}/Exchange", request, ExchangeReply, deadline=Deadline.after(5))
    assert len(bob.rrefs.table) == 1
    # Each message has an outcome of its own.
    unknown, foreign = reply.errors
    assert (unknown.index, foreign.index) == (0, 2)
    assert "unknown kind" in unknown.error.message
    assert f"{cat.me} speaks for {ann.me}" in foreign.error.message
    assert list(reply.messages) == to_messages([Deleted(own[0]), Deleted(own[1])])


async def test_what_makes_no_sense_stops_nothing_else(
    team: Team, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever one message in each request and in each answer is: the others are heeded."""
    ann, bob = await team.hire("ann"), await team.hire("bob")
    rrefs = [ann.rrefs.remote("bob", things.Counter) for _ in range(10)]
    await asyncio.gather(*(rref.confirmed_by_owner() for rref in rrefs))
    pack = control.to_messages
    for module in (control, servicer):
        monkeypatch.setattr(module, "to_messages", lambda said: [ReferenceMessage(), *pack(said)])
    del rrefs
    await team.clean()
    assert "bob refuses what was said" in caplog.text
    assert "; said what makes no sense" in caplog.text
    assert len(bob.rrefs.table) == 0


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


async def test_a_silence_is_no_proof(team: Team, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long nobody is reached: only the membership takes references from their holders."""
    monkeypatch.setattr(control, "LAST_RETRY", 0.02)
    monkeypatch.setattr(control, "FIRST_RETRY", 0.01)
    monkeypatch.setattr(control, "GONE_SECONDS", 0.0, raising=False)
    ann, bob = await team.hire("ann"), await team.hire("bob")
    mine, theirs = ann.rrefs.rref("mine"), ann.rrefs.remote("bob", things.Counter)
    await ann.rpc("bob", things.keep, [mine])
    await theirs.confirmed_by_owner()
    del mine
    await bob.worker.agent.close()
    team.book.known.pop("bob")
    attempts, said = 0, ann.rrefs._control._said

    def count(*arguments: Any) -> None:
        nonlocal attempts
        attempts += 1
        said(*arguments)

    monkeypatch.setattr(ann.rrefs._control, "_said", count)
    theirs.close()
    await until(lambda: attempts >= 10)
    assert bob.me not in ann.account.fenced
    (info,) = ann.rrefs.list()
    assert [holder.name for holder in info.holders] == ["bob"]
    assert ann.account.debtors == {bob.me}
    team.book.ended.add(bob.me)
    await team.clean("ann")


async def test_an_owner_that_died_before_anybody_here_could_hear_of_it(team: Team) -> None:
    ann, bob = await team.hire("ann"), await team.hire("bob")
    rref = ann.rrefs.remote("bob", things.Counter)
    await rref.confirmed_by_owner()
    team.book.known.pop("bob")
    await bob.worker.agent.close()
    team.book.ended.add(bob.me)  # cat finds it in the view, but nobody tells
    await team.hire("cat")
    with pytest.raises(PeerLost, match="bob"):
        await ann.rpc("cat", things.use, [rref])
    await team.clean("cat")


async def test_an_evicted_member_that_wakes_hears_it_from_whom_it_talks_to(team: Team) -> None:
    """Its own membership has not told it yet."""
    ann, _ = await team.hire("ann"), await team.hire("bob")
    theirs, kept = ann.rrefs.remote("bob", things.Counter), ann.rrefs.remote("bob", things.Counter)
    mine = ann.rrefs.rref("mine")
    await asyncio.gather(theirs.confirmed_by_owner(), kept.confirmed_by_owner())
    team.members["bob"].rrefs.lost(ann.worker.agent.identity, "lease")
    theirs.close()
    await until(lambda: ann.account.eviction is not None)
    for use in (kept.to_here, ann.rrefs.remote("bob", things.Counter).to_here):
        with pytest.raises(Evicted, match="join again"):
            await use()
    assert mine.local_value() == "mine"
    assert ann.account.debtors == set()
