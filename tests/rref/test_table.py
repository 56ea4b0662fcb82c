"""The table: who waits for what, and what finalizers leave behind."""

import asyncio

import pytest

from psframework.errors import ArgumentError, ContextClosed, DeadlineExceeded, Evicted, PeerLost, WireError
from psframework.rpc.call import PeerInfo
from psframework.rpc.deadline import Deadline
from psframework.rref.ids import ForkId, HoldId, RRefId
from psframework.rref.messages import Delete, Deleted, Message, Register, Registered
from psframework.rref.table import Home, Table

USER = PeerInfo("user", "worker", "", 2)
SOON = 10.0


class Desk:
    def __init__(self) -> None:
        self.said: list[tuple[int, Message]] = []
        self.table = Table(PeerInfo("owner", "worker", "", 1), lambda to, what: self.said.append((to, what)))


@pytest.fixture
async def desk() -> Desk:
    return Desk()


async def test_waiting_for_a_value(desk: Desk) -> None:
    table, rref, fork = desk.table, RRefId(2, 1), ForkId(2, 1)
    waiting = asyncio.ensure_future(table.value(rref, fork, Deadline.after(SOON)))
    await asyncio.sleep(0)  # its creation has not arrived
    entry = table.create(rref, fork, USER)
    assert entry is not None
    with pytest.raises(DeadlineExceeded, match="still being made"):
        await table.value(rref, fork, Deadline.after(0.01))
    table.finish(entry, "value")
    assert await waiting == "value"
    assert table.receive(USER, Delete(fork)) == [Deleted(fork)]
    with pytest.raises(PeerLost, match="no value"):
        await table.value(rref, fork, Deadline.after(SOON))
    assert not table.waiters
    assert not table.born


async def test_a_value_that_goes_while_somebody_waits(desk: Desk) -> None:
    table, rref, fork = desk.table, RRefId(2, 1), ForkId(2, 1)
    table.create(rref, fork, USER)
    waiting = asyncio.ensure_future(table.value(rref, fork, Deadline.after(SOON)))
    await asyncio.sleep(0)
    table.lost(2, "lease")
    with pytest.raises(PeerLost):
        await waiting


async def test_answers_go_back_and_the_rest_is_posted(desk: Desk) -> None:
    table, rref, parent, child = desk.table, RRefId(2, 1), ForkId(2, 1), ForkId(3, 1)
    other = PeerInfo("other", "worker", "", 3)
    assert table.receive(other, Register(child, rref, parent, HoldId(2, 1))) == []
    table.create(rref, parent, USER)
    assert desk.said == [(3, Registered(child))]
    assert table.names == {1: "owner", 2: "user", 3: "other"}
    with pytest.raises(WireError):
        table.receive(USER, Delete(child))


async def test_a_fork_that_is_used_before_it_is_registered(desk: Desk) -> None:
    """A reference in a message is used at once; its registration may be overtaken by that use."""
    table = desk.table
    entry = table.adopt()
    table.finish(entry, "value")
    hold = table.depart(Home(entry.rref, entry), USER)
    fork = ForkId(2, 1)
    with pytest.raises(DeadlineExceeded, match=f"fork {fork} of RRef {entry.rref} is not registered"):
        await table.value(entry.rref, fork, Deadline.after(0.01))
    waiting = asyncio.ensure_future(table.value(entry.rref, fork, Deadline.after(SOON)))
    await asyncio.sleep(0)
    assert not waiting.done()
    table.receive(USER, Register(fork, entry.rref, None, hold.id))
    assert await waiting == "value"
    assert not table.waiters


async def test_a_fork_is_no_key_to_other_values(desk: Desk) -> None:
    table, fork = desk.table, ForkId(2, 1)
    mine, secret = table.create(RRefId(2, 1), fork, USER), table.adopt()
    assert mine is not None
    for entry in (mine, secret):
        table.finish(entry, "value")
    with pytest.raises(ContextClosed, match=f"fork {fork} does not refer to RRef {secret.rref}"):
        await table.value(secret.rref, fork, Deadline.after(SOON))
    table.account.owner.acquire(mine)
    table.receive(USER, Delete(fork))
    with pytest.raises(ContextClosed, match=f"RRef {mine.rref}: dropped"):
        await table.value(mine.rref, fork, Deadline.after(SOON))


async def test_the_dead_have_no_names(desk: Desk) -> None:
    table = desk.table
    table.lost(2, "lease")
    with pytest.raises(Evicted):
        table.receive(USER, Delete(ForkId(2, 1)))
    with pytest.raises(Evicted):
        table.arrive(RRefId(2, 1), (3, "other"), None, HoldId(2, 1), USER)
    assert set(table.names) == {1, 3}


async def test_a_homecoming_that_waits_for_its_parent(desk: Desk) -> None:
    table, rref, parent = desk.table, RRefId(2, 1), ForkId(2, 1)
    home, waiting = table.arrive(rref, (1, "owner"), parent, HoldId(2, 1), USER)
    other, abandoned = table.arrive(rref, (1, "owner"), parent, HoldId(2, 2), USER)
    third, dropped = table.arrive(rref, (1, "owner"), parent, HoldId(2, 3), USER)
    assert isinstance(home, Home) and isinstance(other, Home)
    assert waiting is not None and abandoned is not None and dropped is not None
    table.abandon(other)
    table.drop(third)
    entry = table.create(rref, parent, USER)
    assert entry is not None
    await waiting
    with pytest.raises(PeerLost):
        await abandoned
    assert home.entry is entry
    assert entry.handles == 1
    table.abandon(home)  # too late to count
    table.drop(home)
    table.drop(home)
    assert entry.handles == 0


async def test_local_value_waits_in_threads_only(desk: Desk) -> None:
    entry = desk.table.adopt()
    home = Home(entry.rref, entry)
    with pytest.raises(ArgumentError, match="still being made"):
        desk.table.local_value(home)
    waiting = asyncio.ensure_future(asyncio.to_thread(desk.table.local_value, home))
    await asyncio.sleep(0.01)
    desk.table.finish(entry, "value")
    assert await waiting == "value"
    assert desk.table.local_value(home) == "value"


async def test_finalizers_in_any_number_wake_the_loop_once(desk: Desk) -> None:
    table = desk.table
    homes = [Home(entry.rref, entry) for entry in (table.adopt() for _ in range(10))]
    await asyncio.to_thread(lambda: [table.drop_later(home) for home in homes])
    await asyncio.sleep(0)
    assert len(table) == 0
    assert not table.born
