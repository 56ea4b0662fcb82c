"""ASP and SSP on one shard: a push is applied when it arrives; SSP holds back trainers too far ahead."""

from __future__ import annotations

from psframework.parameter_server.dedupe import Outcome
from psframework.parameter_server.gate import Admission, Gate, Verdict
from psframework.parameter_server.policy import ASP, BSP, SSP, Policy
from psframework.parameter_server.roster import Entry, Roster
from psframework.parameter_server.rounds import Rounds


class Clocks(Gate):
    """The gate of SSP, and without a bound that of ASP.

    Args:
        table: name for messages.
        staleness: how many steps a pull's trainer may be ahead of the slowest; None: any number.
    """

    def __init__(self, table: str, staleness: int | None) -> None:
        super().__init__(table)
        self._staleness = staleness
        self._clock: dict[int, int] = {}  # slot -> steps that it has pushed
        self._reached = 0

    @property
    def next_step(self) -> int:
        clocks = [self._clock.get(entry.slot, 0) for entry in self.roster.open_entries()]
        return min(clocks, default=self._reached)

    def admit(self, writer: int, step: int) -> Admission:
        self.trainer(writer)
        return Admission(Verdict.APPLY)  # each partition knows which pushes it has seen

    def pushed(self, writer: int, step: int) -> None:
        slot = self.trainer(writer).slot
        self._clock[slot] = max(step + 1, self._clock.get(slot, 0))
        self._reached = max(self._reached, self.next_step)

    def released(self, writer: int, step: int) -> bool:
        if self.reader(writer) or self._staleness is None:
            return True
        return step - self.next_step <= self._staleness

    def outcome(self, writer: int, step: int) -> Outcome:
        return Outcome.APPLIED

    def waiting(self) -> str:
        slowest = self.next_step
        names = [e.name for e in self.roster.open_entries() if self._clock.get(e.slot, 0) == slowest]
        return f"{self.table!r} waits for {', '.join(names)}, which has done {slowest} steps"

    def publish(self, roster: Roster) -> bool:
        accepted = super().publish(roster)
        slots = {entry.slot for entry in self.roster.entries}
        self._clock = {slot: clock for slot, clock in self._clock.items() if slot in slots}
        return accepted

    def _complete(self, entry: Entry) -> int:
        return self._clock.get(entry.slot, entry.from_step)

    def _joined(self, entry: Entry) -> None:
        self._clock[entry.slot] = entry.from_step


def gate_for(policy: Policy, table: str, *, single: bool = False) -> Gate:
    """The gate of a policy; `single`: one shard holds the whole model."""
    match policy:
        case BSP():
            return Rounds(table, policy, single=single)
        case SSP():
            return Clocks(table, policy.staleness)
        case ASP():
            return Clocks(table, None)
