"""What ranks tell each other beside operations: all of few, and among many those with sessions."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any, cast

import pytest
from seats import Group, World, soon, until

from psframework.collective import news
from psframework.collective.descriptor import Descriptor, Operation
from psframework.collective.news import News
from psframework.collective.post import Key
from psframework.collective.seat import Seat
from psframework.errors import CollectiveMismatch


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with AsyncExitStack() as stack:
        yield World(stack)


def of(world: World, name: str) -> News:
    return News(world.members[name].worker.remote.routes)


def begin(seat: Seat) -> Group:
    group = Group()
    seat.group = cast(Any, group)
    return group


async def test_of_few_all_are_told(world: World) -> None:
    a, b, c = await world.group()
    of(world, "a").failed(a, CollectiveMismatch("they differ"))
    await until(lambda: b.error is not None and c.error is not None)
    assert [str(each.error) for each in (b, c)] == ["they differ"] * 2
    assert type(b.error) is CollectiveMismatch
    assert a.error is None  # that is up to whoever tells


async def test_those_that_are_gone_are_not(world: World) -> None:
    a, b, c = await world.group()
    a.lost.add(1)
    of(world, "a").failed(a, CollectiveMismatch("they differ"))
    await until(lambda: c.error is not None)
    assert b.error is None


async def test_among_many_those_with_sessions(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(news, "EVERYBODY", 2)
    a, b, c = await world.group()
    await a.post.send(1, Key("", 1), b"", [], soon())
    of(world, "a").failed(a, CollectiveMismatch("they differ"))
    await until(lambda: b.error is not None)
    assert world.members["a"].agent.peer_for("c") is None
    await c.reach(1, soon())
    b._watch(2, cast(Any, world.members["b"].agent.peer_for("c")))
    of(world, "b").heard(b, CollectiveMismatch("they differ"))
    await until(lambda: c.error is not None)


async def test_of_few_nobody_passes_on_what_all_hear(world: World) -> None:
    a, b, _ = await world.group()
    of(world, "a").heard(a, CollectiveMismatch("they differ"))
    await asyncio.sleep(0.05)
    assert b.error is None


async def test_an_end_in_order_is_waited_for(world: World) -> None:
    a, b, c = await world.group()
    groups = [begin(seat) for seat in (b, c)]
    await of(world, "a").closed(a, 12)
    assert [[after for _, after in group.ends] for group in groups] == [[12], [12]]


async def test_nobody_waits_long_for_one_that_does_not_answer(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(news, "TELL_SECONDS", 0.1)
    a, b, _ = await world.group()
    group = begin(b)
    await a.reach(1, soon())
    await world.members["c"].agent.close()
    world.book.known.pop("c")
    async with asyncio.timeout(5):
        await of(world, "a").closed(a, 12)
    assert len(group.ends) == 1


async def test_where_the_others_are(world: World) -> None:
    a, b, c = await world.group()
    group = begin(b)
    runs = Descriptor(4, Operation.BARRIER)
    group.recorder.started(group.recorder.called(runs), runs)
    begin(c)
    await world.members["c"].agent.close()
    world.book.known.pop("c")
    found = await of(world, "a").standings(a, soon(0.5))
    assert list(found) == [1]
    assert (found[1].running, found[1].running_text, found[1].completed) == (4, "barrier()", 0)
