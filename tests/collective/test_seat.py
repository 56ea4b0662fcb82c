"""One member's seat: its sessions, and what becomes of the generation."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any, cast

import pytest
from seats import Group, World, soon, until

from psframework.collective.post import Key
from psframework.collective.seat import Seat
from psframework.errors import (
    CollectiveMismatch,
    DeadlineExceeded,
    PeerLost,
    PermissionDenied,
    WireError,
)
from psframework.wire.shm import Segment


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with AsyncExitStack() as stack:
        yield World(stack)


def begin(seat: Seat) -> Group:
    group = Group()
    seat.group = cast(Any, group)
    return group


async def test_both_ends_see_that_a_session_ends(world: World) -> None:
    """The one that dialled, and the one that only got letters."""
    a, b, c = await world.group()
    groups = [begin(seat) for seat in (a, b, c)]
    await a.post.send(1, Key("", 1), b"", [], soon())
    await world.members["a"].agent.close()
    await until(lambda: groups[1].ends)
    ((error, after),) = groups[1].ends
    assert after is None
    assert isinstance(error, PeerLost)
    assert (error.rank, error.peer, error.reason) == (0, "a", "closed")
    assert str(error).startswith("rank 0 (a) of group 'g' is gone: ")
    assert b.error is error
    assert b.lost == {0}
    assert world.told == [(1, error)]  # and a, which left, accuses nobody
    assert a.error is None
    assert groups[2].ends == []  # it had no session with it: the membership tells it


async def test_one_that_can_not_be_dialled_is_waited_for(world: World) -> None:
    await world.hire("a")
    await world.hire("b", listens=False)
    a, b = await world.group("ab")
    sending = asyncio.ensure_future(a.post.send(1, Key("", 1), b"hello", [], soon()))
    await asyncio.sleep(0.05)
    assert not sending.done()
    await b.reach(0, soon())
    await sending
    assert (await b.post.receive(0, Key("", 1), soon())).header == b"hello"


async def test_one_that_never_dials(world: World) -> None:
    await world.hire("a")
    await world.hire("b", listens=False)
    a, _ = await world.group("ab")
    with pytest.raises(PeerLost, match="no address to be dialled at"):
        await a.reach(1, soon(0.05))


async def test_another_life_of_a_member_is_another_member(world: World) -> None:
    a, _ = await world.group("ab")
    known = world.book.known["b"]
    world.book.known["b"] = known._replace(incarnation=known.incarnation + 1)
    with pytest.raises(PeerLost, match=r"incarnation \d+ of b has ended"):
        await a.reach(1, soon())


async def test_only_the_first_loss_counts(world: World) -> None:
    a, *_ = await world.group()
    group = begin(a)
    a.lose(1, PeerLost("b: no lease", reason="lease"))
    a.lose(1, PeerLost("b: closed"))
    a.lose(2, PeerLost("c: closed"))
    a.abort(CollectiveMismatch("different"))
    assert str(group.ends[0][0]) == "rank 1 (b) of group 'g' is gone: b: no lease"
    assert isinstance(a.error, PeerLost)
    assert a.error.reason == "lease"


async def test_who_closes_in_order_ends_only_what_comes_after(world: World) -> None:
    a, *_ = await world.group()
    group = begin(a)
    a.depart(1, 17)
    a.lose(1, PeerLost("b: closed"))  # the session ends too
    ((error, after),) = group.ends
    assert str(error) == "rank 1 (b) has closed group 'g' after operation 17"
    assert (after, a.error, a.departed, a.lost) == (17, None, {1}, set())


async def test_who_closes_before_the_group_is_there_ends_it(world: World) -> None:
    a, *_ = await world.group()
    a.depart(1, 0)
    assert isinstance(a.error, PeerLost)


async def test_strangers_and_wrong_ranks_are_refused(world: World) -> None:
    a, b, _ = await world.group()
    peer = await b.reach(0, soon())
    other = await world.hire("stranger")
    await other.agent.connect([world.members["a"].worker.address], name="a", role="worker", deadline=soon())
    callers = world.members["a"].agent
    from_b, from_stranger = callers.peer_for("b"), callers.peer_for("stranger")
    assert from_b is not None
    assert from_stranger is not None
    a.check(1, from_b)
    with pytest.raises(PermissionDenied, match="b is not rank 2 of generation 1 of group 'g'"):
        a.check(2, from_b)
    with pytest.raises(PermissionDenied, match="stranger is not rank 1"):
        a.check(1, from_stranger)
    assert peer.lost is None


async def test_a_segment_is_kept_until_it_is_asked_for(world: World) -> None:
    a, *_ = await world.group()
    with Segment.create(4096) as theirs:
        theirs.view(0, 5)[:] = b"hello"
        a.receive(0, theirs)
        with pytest.raises(WireError, match="handed over before"):
            a.receive(0, theirs)
    mine = await a.segment(0, soon())  # a mapping of its own: the session's is closed
    assert mine.read(0, 5) == b"hello"
    mine.close()
    waits = asyncio.ensure_future(a.segment(1, soon()))
    await asyncio.sleep(0)
    with pytest.raises(DeadlineExceeded, match="segment 2 of generation 1 of group 'g'"):
        await a.segment(2, soon(0.05))
    made = Segment.create(4096)
    a.own(1, made)
    assert await waits is made
    made.close()
    waits = asyncio.ensure_future(a.segment(3, soon()))
    await asyncio.sleep(0)
    a.abort(PeerLost("gone"))
    with pytest.raises(PeerLost, match="gone"):
        await waits


async def test_what_nobody_asked_for_is_given_back(world: World) -> None:
    a, *_ = await world.group()
    made = Segment.create(4096)
    a.own(0, made)
    a.forget()
    assert made.closed
