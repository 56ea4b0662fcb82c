"""When each action of a pipeline begins and ends: plans played through, without doing any of the work."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from psframework.errors import ArgumentError
from psframework.pipeline.schedule import Action, Kind


@dataclass(frozen=True, slots=True)
class TimedAction:
    """An action, and when it began and ended: seconds since the step began."""

    action: Action
    began: float
    ended: float


@dataclass(frozen=True, slots=True)
class Timetable:
    """What every rank does when.

    Args:
        spans: for each rank, its actions in order.
    """

    spans: tuple[tuple[TimedAction, ...], ...]

    @property
    def makespan(self) -> float:
        """When the last action ends."""
        return max((spans[-1].ended for spans in self.spans if spans), default=0.0)

    @property
    def bubble(self) -> float:
        """The share of the ranks' time, from 0 to 1, in which they have nothing to do."""
        busy = sum(span.ended - span.began for spans in self.spans for span in spans)
        return 1 - busy / (len(self.spans) * self.makespan) if busy else 0.0


def simulate(
    plans: Sequence[Sequence[Action]],
    times: Mapping[Kind, float] | Callable[[Action], float],
    transfer: float = 0.0,
) -> Timetable:
    """Plays plans through: each rank does its actions in order, as soon as their data are there.

    A forward waits for that of the stage before, a backward for its own forward and for the backward of the
    stage after, a weight action for its backward.

    Args:
        plans: of each rank, or of each replica of each.
        times: seconds that an action takes, of each kind or of each action.
        transfer: seconds that data take from one rank to another.

    Raises:
        ArgumentError: ranks wait for each other, or for what no rank does (the message names who waits where,
            and for what); an action is in the plans twice; a kind has no time.
    """
    run = _Run(plans, _seconds(plans, times), transfer)
    while any(run.advance(rank) for rank in range(len(plans))):
        pass
    if waits := run.waits():
        raise ArgumentError(f"these plans never end: {', '.join(waits)} (of {len(plans)} ranks)")
    return Timetable(tuple(map(tuple, run.spans)))


def needs(action: Action, last: int) -> tuple[Action, ...]:
    """What must be done before an action, in a pipeline whose last stage is `last`."""
    kind, stage, microbatch = action.kind, action.stage, action.microbatch
    if kind is Kind.WEIGHT:
        return (Action(Kind.BACKWARD, stage, microbatch),)
    if kind is Kind.FORWARD:
        return (Action(Kind.FORWARD, stage - 1, microbatch),) if stage else ()
    after = (Action(Kind.BACKWARD, stage + 1, microbatch),) if stage < last else ()
    return (Action(Kind.FORWARD, stage, microbatch), *after)


def ideal_bubble(ranks: int, microbatches: int, virtual_stages: int = 1) -> float:
    """The bubble of GPipe, 1F1B and interleaved 1F1B, where all stages take equally long.

    Source: Narayanan et al., arXiv:2104.04473, section 2.2, as a share of the whole step.
    """
    return (ranks - 1) / (virtual_stages * microbatches + ranks - 1)


class _Run:
    """Plans under way."""

    def __init__(
        self, plans: Sequence[Sequence[Action]], seconds: Callable[[Action], float], transfer: float
    ) -> None:
        self.spans: list[list[TimedAction]] = [[] for _ in plans]
        self._seconds, self._transfer = seconds, transfer
        self._homes = _homes(plans)
        self._last = max((action.stage for action in self._homes), default=0)
        self._ended: dict[Action, float] = {}
        self._left = [deque(plan) for plan in plans]

    def advance(self, rank: int) -> bool:
        """Does what a rank can do now; whether that was anything."""
        queue, spans = self._left[rank], self.spans[rank]
        before = len(queue)
        while queue and not self._missing(queue[0]):
            action = queue.popleft()
            free = spans[-1].ended if spans else 0.0
            began = max([free, *(self._arrival(need, rank) for need in needs(action, self._last))])
            self._ended[action] = began + self._seconds(action)
            spans.append(TimedAction(action, began, self._ended[action]))
        return len(queue) < before

    def waits(self) -> list[str]:
        """Where each rank that is not done waits, and for what."""
        return [
            f"rank {rank} at {queue[0]} for {' and '.join(map(str, self._missing(queue[0])))}"
            for rank, queue in enumerate(self._left)
            if queue
        ]

    def _missing(self, action: Action) -> list[Action]:
        return [need for need in needs(action, self._last) if need not in self._ended]

    def _arrival(self, done: Action, rank: int) -> float:
        """When what an action gave is there on a rank."""
        return self._ended[done] + (self._transfer if self._homes[done] != rank else 0.0)


def _homes(plans: Sequence[Sequence[Action]]) -> dict[Action, int]:
    """The rank that does each action."""
    homes: dict[Action, int] = {}
    for rank, plan in enumerate(plans):
        for action in plan:
            if action in homes:
                raise ArgumentError(f"{action} is done twice: by rank {homes[action]}, and by rank {rank}")
            homes[action] = rank
    return homes


def _seconds(
    plans: Sequence[Sequence[Action]], times: Mapping[Kind, float] | Callable[[Action], float]
) -> Callable[[Action], float]:
    if callable(times):
        return times
    missing = sorted({action.kind for plan in plans for action in plan} - times.keys())
    if missing:
        raise ArgumentError(f"no time is given for actions of kind {', '.join(missing)}")
    return lambda action: times[action.kind]
