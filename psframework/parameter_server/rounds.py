"""BSP on one shard: which gradients are staged, and when a step can be closed (PROTOCOLS 6).

A contribution counts only if it is complete on every shard. A shard knows that by the trainer's word, by
the end of its span in the roster, or by a seal. So all shards close a step with the same contributors.
"""

from __future__ import annotations

from collections import deque

from psframework.errors import ArgumentError
from psframework.parameter_server.dedupe import WINDOW, Outcome
from psframework.parameter_server.gate import Admission, Gate, Round, Verdict
from psframework.parameter_server.policy import BSP
from psframework.parameter_server.roster import Entry, Roster


class Rounds(Gate):
    """The gate of BSP.

    Args:
        table: name for messages.
        policy: with spares, every step is closed by a seal.
        single: this shard holds the whole model, so what is staged here is complete.
    """

    def __init__(self, table: str, policy: BSP, *, single: bool = False) -> None:
        super().__init__(table)
        self._sealed_only = policy.spares > 0
        self._single = single
        self._next = 0
        self._staged: dict[int, int] = {}  # slot -> the writer whose gradient of the next step is here
        self._committed: dict[int, int] = {}  # slot -> its steps below are complete on every shard
        self._history: deque[frozenset[int]] = deque(maxlen=WINDOW)
        self._decided: Round | None = None  # what `ready` said, until it is closed

    @property
    def next_step(self) -> int:
        # A step that is being applied has its contributors: a newcomer can't be one of them any more.
        return self._next + (self._decided is not None)

    def admit(self, writer: int, step: int) -> Admission:
        entry = self.trainer(writer)
        if step < entry.from_step:
            raise ArgumentError(
                f"{entry.name!r} counts in {self.table!r} from step {entry.from_step}, not {step}"
            )
        if step < self._next:
            return Admission(Verdict.DONE, self.outcome(writer, step))
        if step > self._next:
            return Admission(Verdict.WAIT)
        if self._staged.get(entry.slot) == writer:
            return Admission(Verdict.DONE, Outcome.STAGED)
        return Admission(Verdict.STAGE)

    def pushed(self, writer: int, step: int) -> None:
        entry = self.trainer(writer)
        if step == self._next:
            self._staged[entry.slot] = writer
            if self._single and not self._sealed_only:
                self._committed[entry.slot] = step + 1

    def commit(self, writer: int, committed: int) -> None:
        slot = self.trainer(writer).slot
        self._committed[slot] = max(committed, self._committed.get(slot, 0))

    def released(self, writer: int, step: int) -> bool:
        return self.reader(writer) or self._next >= step

    def stands_still(self, writer: int) -> bool:
        # Every step needs this trainer's word, which it gives after it has pulled.
        return not self._sealed_only and not self.reader(writer)

    def ready(self, now: float) -> Round | None:
        """As promised by `Gate`; once said, it stays said, whatever comes before the round is applied."""
        if self._decided is None:
            self._decided = self._ready(now)
        return self._decided

    def _ready(self, now: float) -> Round | None:
        if self.roster.held or not self.roster.ready or self.paused(now):
            return None
        if self._sealed_only:
            slots = next((seal.slots for seal in self.roster.seals if seal.step == self._next), None)
            # A shard that was told the seal before the last contributor's data waits for that data.
            return Round(self._next, slots) if slots and all(s in self._staged for s in slots) else None
        active = list(self.roster.active(self._next))
        if active and all(self._counts(entry) for entry in active):
            return Round(self._next, tuple(entry.slot for entry in active))
        return None

    def _counts(self, entry: Entry) -> bool:
        if self._staged.get(entry.slot) != entry.writer:
            return False
        return not entry.open or self._committed.get(entry.slot, 0) > self._next

    def closed(self, done: Round) -> None:
        self._history.append(frozenset(done.slots))
        self._staged.clear()
        self._decided = None
        self._next += 1

    def outcome(self, writer: int, step: int) -> Outcome:
        if step >= self._next:
            return Outcome.STAGED
        age = self._next - step
        if age > len(self._history):  # with spares, one may be far behind; the partitions know what they took
            return Outcome.DROPPED
        return Outcome.APPLIED if self.trainer(writer).slot in self._history[-age] else Outcome.DROPPED

    def waiting(self) -> str:
        if self.roster.held:
            names = ", ".join(entry.name for entry in self.roster.open_entries())
            return f"step 0 of {self.table!r} waits for more trainers; registered: {names or 'nobody'}"
        missing = [entry.name for entry in self.roster.active(self._next) if not self._counts(entry)]
        whom = ", ".join(missing) or "a decision of the coordinator"
        return f"step {self._next} of {self.table!r} waits for {whom}"

    def _complete(self, entry: Entry) -> int:
        if self._staged.get(entry.slot) == entry.writer:
            return self._next + 1
        return max(self._next, entry.from_step)

    def _accepts(self, entry: Entry) -> bool:
        return entry.from_step >= self.next_step

    def _joined(self, entry: Entry) -> None:
        # A slot's next owner inherits nothing that its predecessor said or staged.
        self._committed.pop(entry.slot, None)

    def publish(self, roster: Roster) -> bool:
        accepted = super().publish(roster)
        if accepted:
            counted = {entry.slot: entry.writer for entry in self.roster.active(self._next)}
            for slot in [slot for slot, writer in self._staged.items() if counted.get(slot) != writer]:
                del self._staged[slot]
            slots = {entry.slot for entry in self.roster.entries}
            self._committed = {s: step for s, step in self._committed.items() if s in slots}
        return accepted
