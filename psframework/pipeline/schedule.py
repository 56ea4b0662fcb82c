"""Schedules of a pipeline: what each rank does in one step, and in which order.

Every plan is made from numbers alone, the same on every rank, so ranks need no word from a coordinator to
know what comes next. Rank `r` of `p` hosts the stages `r`, `r + p`, `r + 2p`, ...; each rank does its actions
in the order of its plan and waits for the data of each. No plan can deadlock, for any number of ranks,
micro-batches and virtual stages (`timetable.simulate` is the witness). Every stage goes forward, and back, in
the order of the micro-batches under each schedule, so gradients are always summed in the same order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from typing import Final

from psframework.errors import ArgumentError


class Kind(StrEnum):
    """What an action does with the micro-batch.

    Under "zb-h1" a backward gives the gradient of the stage's input alone, and a weight action that of its
    parameters; under the other schedules a backward gives both.
    """

    FORWARD = "F"
    BACKWARD = "B"
    WEIGHT = "W"


@dataclass(frozen=True, slots=True, order=True)
class Action:
    """One thing that a rank does: `F0.3` is the forward of micro-batch 3 through stage 0."""

    kind: Kind
    stage: int
    microbatch: int

    def __str__(self) -> str:
        return f"{self.kind}{self.stage}.{self.microbatch}"


def gpipe(rank: int, ranks: int, microbatches: int) -> Iterator[Action]:
    """All forwards, then all backwards: the simplest order; keeps every micro-batch's activations.

    Source: Huang et al., GPipe, arXiv:1811.06965.
    """
    return _alternate([rank], [range(microbatches)], warm_up=microbatches)


def one_f_one_b(rank: int, ranks: int, microbatches: int) -> Iterator[Action]:
    """Forwards until the first gradient is due, then one forward, one backward, in turns.

    As fast as GPipe, but a rank keeps the activations of at most `ranks - rank` micro-batches.
    Source: Narayanan et al., PipeDream-Flush, arXiv:2104.04473, section 2.2.1.
    """
    return _alternate([rank], [range(microbatches)], warm_up=ranks - rank - 1)


def eager_one_f_one_b(rank: int, ranks: int, microbatches: int) -> Iterator[Action]:
    """1F1B with one more forward under way for each rank that comes after.

    Under 1F1B a rank begins an output just when the next rank has nothing else to do, so that the way of
    data counts in the time of nearly each micro-batch. Here it begins one action earlier, and nobody waits
    if data take no longer than half of a forward and a backward; a rank keeps the activations of up to
    `2 * (ranks - rank) - 1` micro-batches for it.
    Source: Zhuang et al., arXiv:2211.05322, section 4.
    """
    return _alternate([rank], [range(microbatches)], warm_up=2 * (ranks - rank - 1))


def interleaved(rank: int, ranks: int, microbatches: int, virtual_stages: int = 1) -> Iterator[Action]:
    """1F1B over several stages a rank: a bubble `virtual_stages` times smaller for as many more messages.

    Groups of micro-batches go through the rank's stages in turn. Where `microbatches` is a multiple of
    `ranks`, groups are of `ranks` and the order is Megatron's; else groups are larger, and differ by one at
    most. The larger come first: the warm-up is that of the first group, and a later group that were larger
    would need forwards that no warm-up has done, and deadlock. With at least `ranks` micro-batches, and
    stages that take equally long, the bubble is `timetable.ideal_bubble` exactly.
    Source: Narayanan et al., arXiv:2104.04473, section 2.2.2.
    """
    groups = _groups(ranks, microbatches)
    stages = range(rank, ranks * virtual_stages, ranks)
    warm_up = 2 * (ranks - rank - 1) + (virtual_stages - 1) * len(groups[0])
    return _alternate(stages, groups, warm_up)


def zero_bubble(rank: int, ranks: int, microbatches: int) -> Iterator[Action]:
    """ZB-H1: 1F1B whose backwards give only what the rank before waits for; weights fill the bubble.

    Rank `r` is `r` weight actions behind its backwards, so no rank keeps the activations of more than
    `ranks` micro-batches, which is rank 0's peak under 1F1B. (The last rank, which under 1F1B keeps one,
    pays for it.) The bubble lasts `(p-1)(F+B-W)` in place of 1F1B's `(p-1)(F+B+W)`, where W is no longer
    than F. Source: Qi et al., arXiv:2401.10241.
    """
    weights = 0
    for action in one_f_one_b(rank, ranks, microbatches):
        yield action
        if action.kind is Kind.BACKWARD and action.microbatch >= rank:
            yield Action(Kind.WEIGHT, rank, weights)
            weights += 1
    for microbatch in range(weights, microbatches):
        yield Action(Kind.WEIGHT, rank, microbatch)


_PLAIN: Final[dict[str, Callable[[int, int, int], Iterator[Action]]]] = {
    "gpipe": gpipe,
    "1f1b": one_f_one_b,
    "eager-1f1b": eager_one_f_one_b,
    "zb-h1": zero_bubble,
}
SCHEDULES: Final = (*_PLAIN, "interleaved")
"""Names of the schedules."""


def actions(
    schedule: str, rank: int, ranks: int, microbatches: int, virtual_stages: int = 1
) -> tuple[Action, ...]:
    """What a rank does in one step of training, in order.

    Args:
        schedule: one of `SCHEDULES`.
        rank: of the stage service, from 0.
        ranks: number of stage services.
        microbatches: number of micro-batches; any, also fewer than ranks.
        virtual_stages: stages that each rank hosts; more than one only if interleaved.

    Raises:
        ArgumentError: the schedule is not known or can't have virtual stages, or a number is out of range.
    """
    _check(rank, ranks, microbatches, virtual_stages)
    if schedule == "interleaved":
        return tuple(interleaved(rank, ranks, microbatches, virtual_stages))
    if schedule not in _PLAIN:
        raise ArgumentError(f"no schedule is named {schedule!r}; there are {', '.join(SCHEDULES)}")
    if virtual_stages != 1:
        raise ArgumentError(
            f"{virtual_stages} virtual stages under the schedule {schedule!r}: only 'interleaved' has several"
        )
    return tuple(_PLAIN[schedule](rank, ranks, microbatches))


def forward_only(rank: int, ranks: int, microbatches: int, virtual_stages: int = 1) -> tuple[Action, ...]:
    """What a rank does to infer or evaluate: the forwards, in the order of `interleaved`.

    Raises:
        ArgumentError: a number is out of range.
    """
    _check(rank, ranks, microbatches, virtual_stages)
    plan = interleaved(rank, ranks, microbatches, virtual_stages)
    return tuple(action for action in plan if action.kind is Kind.FORWARD)


def own(plan: Iterable[Action], replica: int, replicas: int) -> tuple[Action, ...]:
    """What one of several replicas of a rank does: micro-batches go round the replicas in turn.

    Replicas do their shares of one plan in the order of that plan, so ranks may have different numbers of
    them, and still nothing deadlocks. Source: Harlap et al., PipeDream's 1F1B-RR, arXiv:1806.03377.

    Args:
        plan: the rank's, as `actions` or `forward_only` gives it.
        replica: number of the replica, from 0.
        replicas: how many of them the rank has.

    Raises:
        ArgumentError: the replica is none of them.
    """
    if not 0 <= replica < replicas:
        raise ArgumentError(f"replica {replica} of {replicas}: replicas are numbered from 0")
    return tuple(action for action in plan if action.microbatch % replicas == replica)


def peak_activations(plan: Sequence[Action]) -> int:
    """Most activations that a plan of training keeps at a time: one for each micro-batch in each stage.

    They are kept from the forward until the backward, or until the weight action where the plan has those.
    """
    frees = Kind.WEIGHT if any(action.kind is Kind.WEIGHT for action in plan) else Kind.BACKWARD
    kept = peak = 0
    for action in plan:
        kept += (action.kind is Kind.FORWARD) - (action.kind is frees)
        peak = max(peak, kept)
    return peak


def _alternate(stages: Sequence[int], groups: Sequence[range], warm_up: int) -> Iterator[Action]:
    """The first `warm_up` forwards, then a forward and a backward in turns, then what backwards are left.

    Each group of micro-batches goes forward through all the stages before the next does, and so back.
    """
    forwards = [Action(Kind.FORWARD, stage, j) for group in groups for stage in stages for j in group]
    backwards = [Action(Kind.BACKWARD, stage, j) for group in groups for stage in stages[::-1] for j in group]
    warm_up = min(warm_up, len(forwards))
    yield from forwards[:warm_up]
    for pair in zip(forwards[warm_up:], backwards):
        yield from pair
    yield from backwards[len(forwards) - warm_up :]


def _groups(ranks: int, microbatches: int) -> list[range]:
    """Micro-batches cut into as many groups of at least `ranks` as there can be; the larger first."""
    count = max(1, microbatches // ranks)
    size, larger = divmod(microbatches, count)
    starts = [size * group + min(group, larger) for group in range(count + 1)]
    return [range(start, end) for start, end in pairwise(starts)]


def _check(rank: int, ranks: int, microbatches: int, virtual_stages: int) -> None:
    counts = {"ranks": ranks, "microbatches": microbatches, "virtual_stages": virtual_stages}
    for name, count in counts.items():
        if count < 1:
            raise ArgumentError(f"{name} is {count}: a pipeline has at least 1")
    if not 0 <= rank < ranks:
        raise ArgumentError(f"rank {rank} of {ranks}: ranks are numbered from 0")
