"""The end of a step on one rank: what is tied or replicated is summed, then each stage updates."""

from __future__ import annotations

from collections.abc import Mapping

from psframework.pipeline.plan import Order
from psframework.pipeline.runner import Runner
from psframework.pipeline.stage import LocalStage


class Updating:
    """How the stages of a rank are updated.

    Args:
        stages: of this rank, by index.
    """

    def __init__(self, stages: Mapping[int, LocalStage]) -> None:
        self._stages = stages

    async def run(self, runner: Runner, order: Order) -> None:
        """Updates all stages by the gradients of a run that has come to its end."""
        for index, stage in self._stages.items():
            await runner.span("U", index, 0, stage.update)
