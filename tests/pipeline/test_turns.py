"""One alone, or several together, in the order in which they came, whoever of them gives up."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from psframework.errors import DeadlineExceeded
from psframework.pipeline.turns import Turns
from psframework.rpc.deadline import Deadline


class Line:
    """People who come to turns, and leave when they are told."""

    def __init__(self) -> None:
        self.turns = Turns()
        self.inside: list[str] = []
        self.tasks: dict[str, asyncio.Task[None]] = {}
        self._leave: dict[str, asyncio.Event] = {}

    async def come(self, *names: str, deadline: Deadline = Deadline.NEVER) -> None:
        """In this order; who is to be alone has a capital."""
        for name in names:
            self._leave[name] = asyncio.Event()
            self.tasks[name] = asyncio.create_task(self._stay(name, deadline))
        await self.quiet()

    async def leave(self, *names: str) -> None:
        for name in names:
            self._leave[name].set()
        await self.quiet()

    async def cancel(self, *names: str) -> None:
        for name in names:
            self.tasks[name].cancel()
        await self.quiet()

    async def quiet(self) -> None:
        for _ in range(20):
            await asyncio.sleep(0)

    async def _stay(self, name: str, deadline: Deadline) -> None:
        enter: Callable[..., Any] = self.turns.alone if name[0].isupper() else self.turns.together
        async with enter(deadline):
            self.inside.append(name)
            alone = [each for each in self.inside if each[0].isupper()]
            assert not alone or len(self.inside) == 1
            try:
                await self._leave[name].wait()
            finally:
                self.inside.remove(name)


async def test_one_alone_or_several_together() -> None:
    line = Line()
    await line.come("A", "B", "a", "b")
    assert line.inside == ["A"]
    await line.leave("A")
    assert line.inside == ["B"]
    await line.leave("B")
    assert line.inside == ["a", "b"]


async def test_nobody_overtakes() -> None:
    """Who comes to be together waits behind one who waits to be alone, who else might wait for ever."""
    line = Line()
    await line.come("a", "A", "b")
    assert line.inside == ["a"]
    await line.leave("a")
    assert line.inside == ["A"]
    await line.leave("A")
    assert line.inside == ["b"]


@pytest.mark.parametrize("who", ["A", "b"])
async def test_who_waits_gives_up(who: str) -> None:
    """The others go on as though it had never come."""
    line = Line()
    await line.come("a", "A", "b", "c")
    await line.cancel(who)
    await line.leave("a")
    assert line.inside == (["b", "c"] if who == "A" else ["A"])
    await line.leave("A")
    assert line.inside == (["b", "c"] if who == "A" else ["c"])


@pytest.mark.parametrize("who", ["A", "a"])
async def test_who_is_inside_gives_up(who: str) -> None:
    line = Line()
    await line.come(who, "B", "b")
    await line.cancel(who)
    assert line.inside == ["B"]
    await line.leave("B")
    assert line.inside == ["b"]


@pytest.mark.parametrize("steps", range(12))
async def test_a_cancellation_at_each_turn_of_the_loop(steps: int) -> None:
    """Also in the moment in which its turn has come and it does not know: nobody may wait for it to leave."""
    line = Line()
    await line.come("A", "B", "c", "D")
    line._leave["A"].set()
    line._leave["B"].set()
    for _ in range(steps):
        await asyncio.sleep(0)
    line.tasks["B"].cancel()
    line.tasks["c"].cancel()
    await line.quiet()
    assert line.inside == ["D"]
    await line.leave("D")
    assert line.inside == []
    await line.come("E")
    assert line.inside == ["E"]


async def test_who_fails_inside_leaves() -> None:
    turns = Turns()
    for enter in (turns.alone, turns.together):
        with pytest.raises(ValueError, match="inside"):
            async with enter():
                raise ValueError("inside")
    async with asyncio.timeout(5), turns.alone():
        pass


async def test_who_has_waited_long_enough() -> None:
    line = Line()
    await line.come("A")
    await line.come("B", "b", deadline=Deadline.after(0.02))
    await line.come("C")
    await asyncio.wait([line.tasks["B"], line.tasks["b"]], timeout=10)
    for name in ("B", "b"):
        with pytest.raises(DeadlineExceeded, match="still at what it had been asked before"):
            line.tasks[name].result()
    await line.leave("A")
    assert line.inside == ["C"]


async def test_a_timeout_inside_is_nobodys_wait() -> None:
    turns = Turns()
    with pytest.raises(TimeoutError) as raised:
        async with turns.alone(Deadline.after(10)):
            raise TimeoutError("of the work")
    assert str(raised.value) == "of the work"
