"""Letters between ranks, over real sessions."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import numpy as np
import pytest
from seats import World, soon, until
from structlog.testing import capture_logs

from psframework.collective import carrier
from psframework.collective.carrier import Carrier, Part
from psframework.collective.mailbox import Mailbox
from psframework.collective.post import Key
from psframework.errors import CollectiveMismatch, DeadlineExceeded, PeerLost
from psframework.rpc.limits import AgentOptions
from psframework.wire.lanes import Lane


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with AsyncExitStack() as stack:
        yield World(stack)


def key(step: int = 0, sequence: int = 1, channel: str = "") -> Key:
    return Key(channel, sequence, step)


async def posts(world: World, names: str = "abc") -> list[Carrier]:
    return [seat.post for seat in await world.group(names)]


@pytest.mark.parametrize("nbytes", [0, 1, 60_000, 3_000_000])
@pytest.mark.parametrize("lanes", ["inline", "striped", "shm"])
async def test_a_letter_arrives_as_it_was_sent(world: World, nbytes: int, lanes: str) -> None:
    chosen = frozenset({Lane.INLINE, Lane(lanes)})
    for name in "ab":
        await world.hire(name, options=AgentOptions(lanes=chosen))
    a, b = await posts(world, "ab")
    data = np.random.default_rng(0).integers(0, 255, nbytes, np.uint8)
    parts = [memoryview(data), b"", b"tail"]
    coming = asyncio.ensure_future(b.receive(0, key(), soon()))
    await a.send(1, key(), b"head", parts, soon())
    data[:] = 0  # it has arrived, so this changes nothing there
    got = await coming
    expected = np.random.default_rng(0).integers(0, 255, nbytes, np.uint8).tobytes()
    assert [bytes(part) for part in got.parts] == [expected, b"", b"tail"]
    assert got.header == b"head"


async def test_letters_wait_and_come_in_any_order(world: World) -> None:
    a, b, c = await posts(world)
    for step in range(3):
        await a.send(2, key(step), b"a%d" % step, [], soon())
        await b.send(2, key(step), b"b%d" % step, [], soon())
    await a.send(2, key(0, channel="p2p"), b"other channel", [], soon())
    for step in (2, 0, 1):
        assert (await c.receive(1, key(step), soon())).header == b"b%d" % step
        assert (await c.receive(0, key(step), soon())).header == b"a%d" % step
    assert (await c.receive(0, key(0, channel="p2p"), soon())).header == b"other channel"
    assert len(c.mailbox) == 0


async def test_settle_waits_for_what_is_on_its_way(world: World) -> None:
    a, b = await posts(world, "ab")
    sending = asyncio.ensure_future(a.send(1, key(), b"h", [bytes(3_000_000)], soon()))
    await asyncio.sleep(0)
    await a.settle()
    assert len(b.mailbox) == 1
    await sending
    await a.settle()  # nothing is: it returns


async def test_a_rank_may_write_to_itself(world: World) -> None:
    a, _ = await posts(world, "ab")
    data = bytearray(b"12345")
    await a.send(0, key(), b"h", [data], soon())
    data[:] = b"00000"
    assert bytes((await a.receive(0, key(), soon())).parts[0]) == b"12345"


async def test_what_does_not_come_in_time_is_named(world: World) -> None:
    a, _b = await posts(world, "ab")
    with pytest.raises(DeadlineExceeded, match=r"rank 1 \(b\) sent no part 3 of operation 7 in time"):
        await a.receive(1, key(3, 7), soon(0.05))
    with pytest.raises(DeadlineExceeded, match=r"rank 1 \(b\) sent no message 7 with tag 3 in time"):
        await a.receive(1, key(3, 7, "p2p"), soon(0.05))
    assert a._arriving == {}
    assert a._scopes == set()


async def test_a_full_mailbox_holds_the_sender_back(world: World) -> None:
    a, b = await posts(world, "ab")
    b.mailbox = Mailbox(most_letters=2)
    for step in range(2):
        await a.send(1, key(step), b"", [], soon())
    held = asyncio.ensure_future(a.send(1, key(2), b"held", [], soon()))
    with pytest.raises(DeadlineExceeded, match=r"rank 1 \(b\) did not take part 5 of operation 1"):
        await a.send(1, key(5), b"", [], soon(0.1))
    assert not held.done()
    assert (await b.receive(0, key(2), soon())).header == b"held"  # though others came before it
    await held
    held = asyncio.ensure_future(a.send(1, key(3), b"", [], soon()))
    await b.receive(0, key(0), soon())
    await held


async def test_an_abort_ends_all_that_waits(world: World) -> None:
    a, b = await posts(world, "ab")
    b.mailbox = Mailbox(most_letters=1)
    await a.send(1, key(0), b"", [], soon())
    waiting = [
        asyncio.ensure_future(a.receive(1, key(0), soon())),
        asyncio.ensure_future(a.send(1, key(1), b"", [], soon())),
    ]
    await asyncio.sleep(0.05)
    error = CollectiveMismatch("they differ")
    a.fail(error)
    a.fail(PeerLost("later"))
    for each in waiting:
        with pytest.raises(CollectiveMismatch, match="they differ") as caught:
            await asyncio.wait_for(each, 1)
        assert caught.value is not error  # else its traceback grows with each that waits
    for later in (a.receive(1, key(5), soon()), a.send(1, key(5), b"", [], soon())):
        with pytest.raises(CollectiveMismatch, match="they differ"):
            await later
    with pytest.raises(CollectiveMismatch, match="they differ"):  # and whoever writes hears why
        await b.send(0, key(6), b"", [], soon())


async def test_a_rank_that_departed(world: World) -> None:
    a, b, c = await posts(world)
    await b.send(0, key(0), b"before", [], soon())
    waits = asyncio.ensure_future(a.receive(1, key(1), soon()))
    await asyncio.sleep(0)
    a.depart(1, PeerLost("b is gone", rank=1))
    with pytest.raises(PeerLost, match="b is gone"):
        await waits
    assert (await a.receive(1, key(0), soon())).header == b"before"
    for later in (a.receive(1, key(2), soon()), a.send(1, key(2), b"", [], soon())):
        with pytest.raises(PeerLost, match="b is gone") as lost:
            await later
        assert lost.value.rank == 1
    await c.send(0, key(9), b"others go on", [], soon())


async def test_a_rank_that_can_not_be_reached_is_reported(world: World) -> None:
    seats = await world.group("ab")
    await world.members["b"].agent.close()
    world.book.known.pop("b")
    with pytest.raises(PeerLost, match=r"rank 1 \(b\) of group 'g' is gone") as lost:
        await seats[0].post.send(1, key(), b"", [], soon())
    assert lost.value.rank == 1
    await until(lambda: seats[0].error is not None)


async def test_one_that_others_have_lost_is_not_mistaken_for_them(world: World) -> None:
    a, b, _ = await world.group()
    b.post.fail(PeerLost("rank 2 (c) is gone", peer="c", rank=2))
    with pytest.raises(PeerLost, match=r"rank 2 \(c\) is gone") as lost:
        await a.post.send(1, key(), b"", [], soon())
    assert lost.value.rank == 2
    assert a.lost == set()


@pytest.mark.parametrize("says", [True, False])
async def test_a_letter_to_who_has_left_fails_as_that_one_says(
    world: World, says: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The farewell may come after the answer to the letter; without one, the rank is lost."""
    a, b, _ = await world.group()
    world.members["b"].leave(b)
    if not says:
        monkeypatch.setattr(carrier, "FAREWELL_SECONDS", 0.01)
    with capture_logs() as lines:
        sending = asyncio.ensure_future(a.post.send(1, key(), b"", [], soon()))
        await asyncio.sleep(0)
        if says:
            await until(lambda: a.post._departure._event._waiters)  # type: ignore[attr-defined]
            a.depart(1, completed=0)
        with pytest.raises(PeerLost, match=r"has closed group 'g' after" if says else "without a word"):
            await sending
    assert a.lost == (set() if says else {1})
    assert not [line for line in lines if line["event"] == "call failed"], "it is no failure where it came"


async def test_some_of_the_ranks_have_numbers_of_their_own(world: World) -> None:
    _, b, c = await posts(world)
    some = [Part(b, [1, 2]), Part(c, [1, 2])]
    assert [(part.rank, part.size, part.names) for part in some] == [(0, 2, ("b", "c")), (1, 2, ("b", "c"))]
    assert [part.numbers for part in some] == [(1, 2), (1, 2)], "as messages for people call them"
    await some[0].send(1, key(), b"hello", [], soon())
    assert (await some[1].receive(0, key(), soon())).header == b"hello"


async def test_a_deadline_of_what_is_inside_is_told_as_such(world: World) -> None:
    a, _ = await posts(world, "ab")
    with pytest.raises(DeadlineExceeded, match=r"rank 1 \(b\) did not take"):
        await a.send(1, key(), b"", [], soon(0))
