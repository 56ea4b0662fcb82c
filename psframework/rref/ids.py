"""Names of values, of the references to them, and of the messages that carry references."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final, Self

from psframework.errors import WireError

_FORMAT: Final = struct.Struct(">QQ")


@dataclass(frozen=True, order=True, slots=True)
class RRefId:
    """One value, wherever it lives.

    Args:
        worker: incarnation of the process that asked for the value (not always its owner).
        counter: of the values that this process asked for.
    """

    worker: int
    counter: int

    def to_bytes(self) -> bytes:
        """16 bytes that sort as the ids do."""
        return _FORMAT.pack(self.worker, self.counter)

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """The opposite; WireError unless there are 16 bytes."""
        return cls(*_unpack(data))

    def __str__(self) -> str:
        return f"{self.worker}.{self.counter}"


@dataclass(frozen=True, order=True, slots=True)
class ForkId:
    """One reference of one holder; unique at the owner of the value.

    Args:
        holder: incarnation of the process that holds it.
        counter: of the forks that the holder has had at this owner, from 1 without a gap.
    """

    holder: int
    counter: int

    def to_bytes(self) -> bytes:
        """16 bytes that sort as the ids do."""
        return _FORMAT.pack(self.holder, self.counter)

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """The opposite; WireError unless there are 16 bytes."""
        return cls(*_unpack(data))

    def __str__(self) -> str:
        return f"{self.holder}/{self.counter}"


@dataclass(frozen=True, order=True, slots=True)
class HoldId:
    """One reference inside one message; unique at the receiver of the message.

    Args:
        sender: incarnation of the process that sent it.
        counter: of the references that the sender has sent to this receiver, from 1 without a gap.
    """

    sender: int
    counter: int

    def __str__(self) -> str:
        return f"{self.sender}>{self.counter}"


class Numbers:
    """Which numbers of a gapless sequence have been seen; remembers one by one only what lies above a gap.

    Attributes:
        through: every number up to it was seen.
        beyond: numbers above a gap that were seen.
    """

    __slots__ = ("beyond", "through")

    def __init__(self) -> None:
        self.through = 0
        self.beyond: set[int] = set()

    def add(self, number: int) -> bool:
        """Sees a number; False if it was seen before."""
        if number in self:
            return False
        if number != self.through + 1:
            self.beyond.add(number)
            return True
        self.through = number
        while self.through + 1 in self.beyond:
            self.through += 1
            self.beyond.remove(self.through)
        return True

    def __contains__(self, number: int) -> bool:
        return number <= self.through or number in self.beyond


def _unpack(data: bytes) -> tuple[int, int]:
    if len(data) != _FORMAT.size:
        raise WireError(f"an id has {_FORMAT.size} bytes, not {len(data)}")
    first, second = _FORMAT.unpack(data)
    return first, second
