"""Flight recorder: a group's last operations, and which rank is behind when one does not end. No I/O."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from psframework.collective.descriptor import Descriptor
from psframework.errors import CollectiveMismatch

KEPT: Final = 2000
"""Operations that a group remembers."""

_MOST = 8  # ranks that a message lists


class Record:
    """One operation of one rank.

    Attributes:
        descriptor: of the operation; its sequence is 0 until it runs.
        called, started, ended: seconds on the recorder's clock; 0.0 if that is yet to come.
        error: what it failed with, in words: the error itself would keep the frames that it went through.
    """

    __slots__ = ("called", "descriptor", "ended", "error", "started")

    def __init__(self, descriptor: Descriptor, called: float) -> None:
        self.descriptor = descriptor
        self.called = called
        self.started = 0.0
        self.ended = 0.0
        self.error = ""

    @property
    def state(self) -> str:
        """ "queued", "running", "done" or "failed"."""
        if self.error:
            return "failed"
        return "done" if self.ended else "running" if self.started else "queued"


@dataclass(frozen=True, slots=True)
class Standing:
    """Where one rank is, as far as another has to know.

    Args:
        completed: sequence of the last operation that succeeded; 0 before the first.
        completed_text: which that was.
        running: sequence of the operation it is in; 0 in none.
        running_text: which that is.
        seconds: for how long it has been in it; without one, since the last ended.
    """

    completed: int = 0
    completed_text: str = ""
    running: int = 0
    running_text: str = ""
    seconds: float = 0.0

    def __str__(self) -> str:
        last = (
            f"its last is {self.completed}, {self.completed_text}" if self.completed else "it completed none"
        )
        now = f"in {self.running}, {self.running_text}" if self.running else "in no operation"
        return f"{now}, for {self.seconds:.1f} s; {last}"


class Recorder:
    """Remembers the operations of one rank.

    Args:
        clock: where "now" comes from, in seconds.
        kept: how many it remembers.

    Attributes:
        last_completed: number of the last operation that succeeded; 0 before the first.
        last_shared: of the last one that ended here as on all ranks: it succeeded, or they differed.
    """

    def __init__(self, clock: Callable[[], float], kept: int = KEPT) -> None:
        self._clock = clock
        self._since = clock()
        self._records: deque[Record] = deque(maxlen=kept)
        self._completed: Record | None = None
        self._running: Record | None = None
        self.last_completed = self.last_shared = 0

    def called(self, descriptor: Descriptor) -> Record:
        """The user called it; it waits for its turn."""
        record = Record(descriptor, self._clock())
        self._records.append(record)
        return record

    def started(self, record: Record, descriptor: Descriptor) -> None:
        """Its turn has come, and it has a sequence number."""
        record.descriptor = descriptor
        record.started = self._clock()
        self._running = record

    def ended(self, record: Record, error: BaseException | None) -> None:
        """It succeeded, failed, or was never started."""
        record.ended = self._since = self._clock()
        record.error = "" if error is None else str(error) or type(error).__name__
        if self._running is record:
            self._running = None
        if error is None:
            self._completed = record
            self.last_completed = record.descriptor.sequence
        if error is None or isinstance(error, CollectiveMismatch):
            self.last_shared = record.descriptor.sequence or self.last_shared

    def resume(self, sequence: int) -> None:
        """The group continues one that completed so many operations."""
        self.last_completed = self.last_shared = sequence

    def standing(self) -> Standing:
        """Where this rank is."""
        done, running = self._completed, self._running
        return Standing(
            self.last_completed,
            str(done.descriptor) if done else "of an earlier generation" if self.last_completed else "",
            running.descriptor.sequence if running else 0,
            str(running.descriptor) if running else "",
            self._clock() - (running.started if running else self._since),
        )

    def report(self, title: str, last: int | None = None) -> str:
        """The operations, oldest first, one a line; times are spans, `called` one before now.

        Args:
            title: first line.
            last: how many operations; None for all.
        """
        now = self._clock()
        lines = [title, f"{'number':>8} {'state':<8} {'called':>10} {'waited':>10} {'took':>10}  operation"]
        records = list(self._records)
        for each in records if last is None else records[max(len(records) - last, 0) :]:
            begun = each.started or each.ended or now
            took = (each.ended or now) - each.started if each.started else 0.0
            number = each.descriptor.sequence or "-"
            lines.append(
                f"{number:>8} {each.state:<8} {_span(now - each.called):>10} {_span(begun - each.called):>10}"
                f" {_span(took):>10}  {each.descriptor}{f': {each.error}' if each.error else ''}"
            )
        return "\n".join(lines)


def _span(seconds: float) -> str:
    return f"{seconds:.3f} s" if seconds >= 0.1 else f"{seconds * 1e6:.0f} us"


def compare(names: Mapping[int, str], standings: Mapping[int, Standing | None]) -> str:
    """Which ranks are behind, and at which operation each is.

    Args:
        names: of all members, by rank.
        standings: of the ranks that answered; None, or no entry, for those that did not.

    Returns:
        For example "missing: rank 2 (trainer-2), in no operation, for 30.0 s; its last is 11, barrier()".
    """
    known = {rank: each for rank, each in standings.items() if each is not None}
    silent = [rank for rank in sorted(names) if rank not in known]
    front = max((max(each.running, each.completed) for each in known.values()), default=0)
    behind = [rank for rank in sorted(known) if max(known[rank].running, known[rank].completed) < front]
    parts = [f"rank {rank} ({names[rank]}), {known[rank]}" for rank in behind]
    parts += [f"rank {rank} ({names[rank]}), which does not answer" for rank in silent]
    if parts:
        return "missing: " + "; ".join(parts[:_MOST]) + (" ..." if len(parts) > _MOST else "")
    where = "; ".join(f"rank {rank} ({names[rank]}): {each}" for rank, each in sorted(known.items())[:_MOST])
    return f"all ranks are in operation {front}: {where}"
