"""Names of values, of the references to them, and of the messages that carry references."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass


@dataclass(frozen=True, order=True, slots=True)
class RRefId:
    """One value, wherever it lives.

    Args:
        worker: incarnation of the process that asked for the value (not always its owner).
        counter: of the values that this process asked for.
    """

    worker: int
    counter: int

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


class Incarnations:
    """Lives that are over: a set that only grows, kept as runs of numbers.

    Lives are numbered one after the other, so the dead lie in runs between those who live: what is remembered
    grows with the number of members at a time, not with the number of those that ever died.
    """

    __slots__ = ("_firsts", "_lasts")

    def __init__(self) -> None:
        self._firsts: list[int] = []
        self._lasts: list[int] = []

    def add(self, incarnation: int) -> bool:
        """One more; False if it is known already."""
        if incarnation in self:
            return False
        firsts, lasts = self._firsts, self._lasts
        at = bisect_right(firsts, incarnation)
        follows = at > 0 and lasts[at - 1] == incarnation - 1
        precedes = at < len(firsts) and firsts[at] == incarnation + 1
        if follows and precedes:
            lasts[at - 1] = lasts.pop(at)
            del firsts[at]
        elif follows:
            lasts[at - 1] = incarnation
        elif precedes:
            firsts[at] = incarnation
        else:
            firsts.insert(at, incarnation)
            lasts.insert(at, incarnation)
        return True

    def __contains__(self, incarnation: int) -> bool:
        at = bisect_right(self._firsts, incarnation)
        return at > 0 and incarnation <= self._lasts[at - 1]

    @property
    def runs(self) -> int:
        """How much is remembered."""
        return len(self._firsts)
