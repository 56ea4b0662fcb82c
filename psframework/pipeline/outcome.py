"""What a step tells the program that asked for it. No I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from psframework.backend import Array
from psframework.pipeline.clocks import Clocks
from psframework.pipeline.microbatch import MicroBatches
from psframework.pipeline.plan import PipePlan, Report
from psframework.pipeline.timeline import Span
from psframework.rpc.values.types import register_type

_KINDS: Final = "FBWU"


@register_type(name="psframework.pipeline.Outcome")
@dataclass(frozen=True)
class Outcome:
    """What came of a step.

    Args:
        loss: of the batch, before it.
        steps: that were completed, this one included.
        services: the service of each lane.
        peak: stage -> most micro-batches that kept something at once.
        times: float64 (actions, 6): lane, stage, micro-batch, place of the kind in "FBWU", began, ended. As
            one array, since they travel with each step.
    """

    loss: float
    steps: int
    services: tuple[str, ...]
    peak: Mapping[int, int]
    times: Array

    @property
    def spans(self) -> list[Span]:
        """What was done when, in seconds of the driver's clock."""
        return [
            Span(int(lane), int(stage), int(microbatch), _KINDS[int(kind)], began, ended)
            for lane, stage, microbatch, kind, began, ended in self.times.tolist()
        ]


def outcome(reports: Sequence[Report], batch: MicroBatches, plan: PipePlan, clocks: Clocks) -> Outcome:
    """What the reports of all seats, in their order, say of a step.

    Args:
        reports: of each seat.
        batch: that it was made with.
        plan: of the pipe.
        clocks: of the services.
    """
    services = lanes(plan)
    peak: dict[int, int] = {}
    times = []
    for lane, (service, report) in enumerate(zip(services, reports)):
        for stage, count in report.peak.items():
            peak[stage] = max(count, peak.get(stage, 0))
        for kind, stage, microbatch, began, ended in report.spans:
            number = -1 if kind == "U" else microbatch
            ends = clocks.here(service, began), clocks.here(service, ended)
            times.append((lane, stage, number, _KINDS.index(kind), *ends))
    array = np.array(times, np.float64).reshape(-1, 6)
    return Outcome(loss_of(reports, batch), 0, services, dict(sorted(peak.items())), array)


def loss_of(reports: Sequence[Report], batch: MicroBatches) -> float:
    """The loss of a whole batch."""
    losses = {number: loss for report in reports for number, loss in report.losses.items()}
    return float(np.dot([losses[number] for number in range(len(batch))], batch.weights))


def lanes(plan: PipePlan) -> tuple[str, ...]:
    """The services, in the order of their seats."""
    return tuple(name for names in plan.services for name in names)
