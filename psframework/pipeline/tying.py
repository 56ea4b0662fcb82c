"""The gradients of tied parameters: each rank that has a copy gets the sum of those of all copies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from psframework.autograd.accumulate import added
from psframework.optim.optimizer import Gradient
from psframework.pipeline.plan import Key, PipePlan, Tie
from psframework.pipeline.runner import Runner
from psframework.pipeline.stage import LocalStage
from psframework.rpc.compute import compute


class Tying:
    """The ties of one rank.

    The sums are made everywhere in the order of the stages, so copies that are equal stay so, to the bit.

    Args:
        stages: of the rank, by index.
        replica: its number; the first replica of each rank tells the others.
    """

    def __init__(self, stages: Mapping[int, LocalStage], replica: int = 0) -> None:
        self._stages, self._replica = stages, replica

    async def reduce(self, runner: Runner) -> None:
        """Sums the gradients of all ties that this rank has a part in."""
        for number, tie in enumerate(runner.plan.ties):
            own = [place for place, (stage, _) in enumerate(tie) if stage in self._stages]
            if self._replica == 0:
                for place in own:
                    self._tell(runner, number, tie, place)
            if own:
                await self._sum(runner, number, tie, own)

    def also_elsewhere(self, plan: PipePlan, stage: int) -> set[str]:
        """Names of parameters of a stage that count as an earlier stage's."""
        return {name for tie in plan.ties for index, name in tie[1:] if index == stage}

    def _tell(self, runner: Runner, number: int, tie: Tie, place: int) -> None:
        stage, name = tie[place]
        gradient = self._stages[stage].learning.parameters[name].grad
        for service in _others(runner.plan, tie, stage):
            runner.send(service, Key(runner.order.run, f"W:{number}", place, 0), gradient)

    async def _sum(self, runner: Runner, number: int, tie: Tie, own: Sequence[int]) -> None:
        found: list[Any] = []
        for place, (stage, name) in enumerate(tie):
            if place in own:
                found.append(self._stages[stage].learning.parameters[name].grad)
            else:
                runner.now(f"waiting for the gradient of {name} of stage {stage}, a tied parameter")
                found.append(await runner.take(Key(runner.order.run, f"W:{number}", place, 0)))
        gradients = [each for each in found if each is not None]
        parameters = [self._stages[tie[place][0]].learning.parameters[tie[place][1]] for place in own]
        if gradients:
            total = await compute(_total, gradients)
            for parameter in parameters:
                parameter.grad = total


def _others(plan: PipePlan, tie: Tie, stage: int) -> list[str]:
    """The services that have copies, but for those of the rank of this stage."""
    ranks = sorted({index % plan.ranks for index, _ in tie} - {stage % plan.ranks})
    return [service for rank in ranks for service in plan.services[rank]]


def _total(gradients: Sequence[Gradient]) -> Gradient:
    """As one process adds them: rows stay rows, whose optimizer leaves the others alone."""
    total = gradients[0].copy()
    for gradient in gradients[1:]:
        total = added(total, gradient)
    return total
