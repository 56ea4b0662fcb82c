"""Exactly once: what a partition remembers of each writer's pushes (PROTOCOLS 4)."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

from psframework.errors import ArgumentError

WINDOW = 64


class Outcome(Enum):
    """What became of the gradients of a push."""

    STAGED = "staged"
    """Held until the step is closed."""
    APPLIED = "applied"
    """Added to the parameters."""
    DROPPED = "dropped"
    """The step was closed without them."""


class Dedupe:
    """The pushes of each writer that one partition has applied or dropped.

    For each writer: all sequence numbers up to `through` are done, and of the 64 numbers around it the
    outcome is known. A number is recorded once; whoever asks first decides.
    """

    __slots__ = ("_done", "_through")

    def __init__(self) -> None:
        self._through: dict[int, int] = {}
        self._done: dict[int, dict[int, Outcome]] = {}

    def seen(self, writer: int, sequence: int) -> Outcome | None:
        """The outcome if this push is done already, else None.

        Numbers that have left the window count as applied: their writer was told long ago.

        Raises:
            ArgumentError: a number so far ahead that numbers before it would leave the window undone.
        """
        through = self._through.get(writer, 0)
        if sequence > through + WINDOW:
            raise ArgumentError(
                f"push {sequence} of writer {writer} is more than {WINDOW} ahead of {through}"
            )
        known = self._done.get(writer, {}).get(sequence)
        return known or (Outcome.APPLIED if sequence <= through else None)

    def record(self, writer: int, sequence: int, outcome: Outcome) -> None:
        """Remembers a push that was just applied or dropped; ArgumentError if it was done before."""
        if self.seen(writer, sequence) is not None:
            raise ArgumentError(f"push {sequence} of writer {writer} is recorded twice")
        done = self._done.setdefault(writer, {})
        done[sequence] = outcome
        through = self._through.get(writer, 0)
        if sequence == through + 1:
            while through + 1 in done:
                through += 1
            self._through[writer] = through
            for old in [number for number in done if number <= through - WINDOW]:
                del done[old]

    def through(self, writer: int) -> int:
        """All numbers up to this one are done."""
        return self._through.get(writer, 0)

    def keep(self, writers: Iterable[int]) -> None:
        """Forgets every writer that is not among these: fenced ones are refused before they come here."""
        live = set(writers)
        for writer in [writer for writer in self._through.keys() | self._done.keys() if writer not in live]:
            self._through.pop(writer, None)
            self._done.pop(writer, None)
