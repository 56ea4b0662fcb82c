"""Classes and functions whose results tests keep as RRefs."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from psframework.rpc.registry import remote
from psframework.rpc.values.types import register_type

made: list[Any] = []
kept: list[Any] = []
gate = threading.Event()
"""Opens for constructors that wait for it."""


class Base:
    def inherited(self) -> str:
        return "from the base"


@remote
class Counter(Base):
    """Counts."""

    def __init__(self, start: int = 0, seconds: float = 0.0, fail: bool = False, gated: bool = False) -> None:
        time.sleep(seconds)
        assert not gated or gate.wait(30)
        if fail:
            raise ValueError(f"no counter starts at {start}")
        self.value = start
        made.append(start)

    def add(self, n: int = 1) -> int:
        self.value += n
        return self.value

    async def add_later(self, n: int = 1) -> int:
        await asyncio.sleep(0)
        return self.add(n)

    def twin(self) -> "Counter":
        return Counter(self.value)

    def total(self, others: list[Any]) -> int:
        return self.value + sum(other.local_value().value for other in others)

    def count(self, to: int) -> Iterator[int]:
        """A generator, which changes the value as it goes."""
        while self.value < to:
            yield self.add()

    async def pieces(self, n: int) -> AsyncIterator[Any]:
        for number in range(n):
            yield np.full(1_000, float(number))
        if self.value < 0:
            raise ValueError("nothing after that")

    def _private(self) -> None:
        raise AssertionError


@remote
class Holder:
    """Keeps whatever it is given."""

    kept: Any = None

    def put(self, value: Any) -> Any:
        self.kept = value
        return value if isinstance(value, int) else None

    def get(self) -> Any:
        return self.kept


class Unregistered:
    def method(self) -> None:
        raise AssertionError


@remote
def unregistered() -> Unregistered:
    return Unregistered()


@remote
def array(n: int) -> Any:
    return np.arange(float(n))


@remote
async def slow(seconds: float = 60.0) -> str:
    await asyncio.sleep(seconds)
    return "slow"


@remote
async def use(rrefs: Any) -> list[Any]:
    """Copies what references point at, at any depth of a list or dict."""
    found = rrefs.values() if isinstance(rrefs, dict) else rrefs
    return [await rref.to_here() for rref in found]


@remote
async def keep(rrefs: list[Any]) -> None:
    kept.extend(rrefs)


@remote
async def hold(rrefs: list[Any]) -> None:
    await asyncio.sleep(60)


@remote(idempotent=True)
async def idempotent(rref: Any) -> None:
    made.append("idempotent")
    await asyncio.sleep(60)


@remote
def forget() -> None:
    kept.clear()


@remote
async def give_back(rrefs: Any) -> Any:
    return rrefs


@remote
def fail(rref: Any) -> None:
    raise ValueError("used nothing")


@remote
def amount(values: list[Any]) -> int:
    return len(values)


@remote
def size(value: Any) -> int:
    return int(value.nbytes)


@register_type
@dataclass
class Unreadable:
    """Can be sent, but not be made at the other end."""

    number: int

    def __post_init__(self) -> None:
        raise ValueError("only one was made")


def _behind() -> list[Any]:
    first = object.__new__(Unreadable)
    first.number = 1
    return [first, *kept]


@remote
async def behind() -> list[Any]:
    """What is kept, behind something that can't be read."""
    return _behind()


@remote
async def behind_one_by_one() -> AsyncIterator[Any]:
    """The same as a stream."""
    for item in _behind():
        yield item
