"""Gates: a consistency policy at work on one shard. When is a push taken, a step closed, a pull released?

A gate decides and does no arithmetic. Its calls never wait; the servicer waits for it to change its mind.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import Enum

from psframework.errors import Evicted, NotRegistered, StaleTerm
from psframework.parameter_server.dedupe import Outcome
from psframework.parameter_server.roster import Entry, Roster


class Verdict(Enum):
    """What to do with a push that arrived."""

    APPLY = "apply"
    """Apply it now."""
    STAGE = "stage"
    """Hold it until its step is closed."""
    WAIT = "wait"
    """Ask again when the gate has changed: an earlier step is not closed yet."""
    DONE = "done"
    """A repetition: answer with the outcome."""


@dataclass(frozen=True, slots=True)
class Admission:
    """A verdict, and the outcome where it is DONE."""

    verdict: Verdict
    outcome: Outcome | None = None


@dataclass(frozen=True, slots=True)
class Round:
    """A step that can be closed, with exactly these contributors, in slot order."""

    step: int
    slots: tuple[int, ...]


class Gate(ABC):
    """What all policies share: the roster, fenced writers, the pause in which a newcomer gets its first step.

    Args:
        table: name for messages.
    """

    def __init__(self, table: str) -> None:
        self.table = table
        self.roster = Roster()
        self._fenced: set[int] = set()
        self._paused_until: float | None = None

    @property
    @abstractmethod
    def next_step(self) -> int:
        """First step that is not closed; a newcomer may start there."""

    @abstractmethod
    def admit(self, writer: int, step: int) -> Admission:
        """What to do with a push. Raises as `trainer` does."""

    @abstractmethod
    def pushed(self, writer: int, step: int) -> None:
        """The push is applied, or staged whole."""

    def commit(self, writer: int, committed: int) -> None:
        """The writer's steps below `committed` are complete on every shard."""
        self.trainer(writer)

    @abstractmethod
    def released(self, writer: int, step: int) -> bool:
        """Whether a pull of a writer whose next step is `step` may be answered."""

    @abstractmethod
    def waiting(self) -> str:
        """Who is being waited for, for the message of a deadline."""

    def ready(self, now: float) -> Round | None:
        """The next step if it can be closed. `now`: seconds of any steady clock."""
        return None

    def closed(self, done: Round) -> None:  # noqa: B027 - only BSP has rounds
        """The round was applied."""

    @abstractmethod
    def outcome(self, writer: int, step: int) -> Outcome:
        """What became of a writer's step that was pushed."""

    @abstractmethod
    def _complete(self, entry: Entry) -> int:
        """First step of the trainer that is not whole here."""

    def _accepts(self, entry: Entry) -> bool:
        """Whether a newcomer can still start where it is meant to."""
        return True

    def _joined(self, entry: Entry) -> None:  # noqa: B027 - not every policy keeps count
        """A newcomer was accepted."""

    def trainer(self, writer: int) -> Entry:
        """The entry of a writer that may push.

        Raises:
            NotRegistered: it never registered as a trainer.
            Evicted: it was fenced, or it left.
        """
        entry = self.roster.trainer(writer, self.table)
        if writer in self._fenced:
            raise Evicted(f"{entry.name!r} (writer {writer}) was fenced from {self.table!r}: register again")
        return entry

    def reader(self, writer: int) -> bool:
        """Whether the writer only pulls; raises as `trainer` does if it is neither."""
        if writer in self.roster.readers:
            return True
        self.trainer(writer)
        return False

    def stands_still(self, writer: int) -> bool:
        """Whether no step is closed between the release of this writer's pull and its next push."""
        return False

    def publish(self, roster: Roster) -> bool:
        """Takes a newer roster; False if a newcomer's first step is closed already.

        Raises:
            StaleTerm: a newer one is known.
        """
        if roster.number < self.roster.number:
            raise StaleTerm(
                f"roster {roster.number} of {self.table!r}: {self.roster.number} is known already"
            )
        if roster.number == self.roster.number:
            return True
        known = {entry.writer for entry in self.roster.entries}
        newcomers = [entry for entry in roster.entries if entry.open and entry.writer not in known]
        if not all(self._accepts(entry) for entry in newcomers):
            return False
        self.roster = roster
        self._paused_until = None
        self._fenced &= roster.writers()
        for entry in newcomers:
            self._joined(entry)
        return True

    def fence(self, writer: int) -> int:
        """Refuses a writer from now on; returns its first step that is not whole here."""
        try:
            entry = self.roster.trainer(writer, self.table)
        except (NotRegistered, Evicted):
            ended = self.roster.find(writer)
            return ended.until_step or 0 if ended else 0
        self._fenced.add(writer)
        return self._complete(entry)

    def pause(self, until: float) -> int:
        """Closes no step until then, or until the next roster; returns the first step that is not closed."""
        self._paused_until = until
        return self.next_step

    def paused(self, now: float) -> bool:
        """Whether no step may be closed now."""
        return self._paused_until is not None and now < self._paused_until
