"""The end of a step on one rank: what is tied or replicated is summed, then each stage updates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from psframework.parameter_server.link import Runtime
from psframework.pipeline.plan import StagePlan
from psframework.pipeline.post import Caller
from psframework.pipeline.replicas import Groups, Replicas
from psframework.pipeline.runner import Runner
from psframework.pipeline.served import Served
from psframework.pipeline.stage import LocalStage
from psframework.pipeline.tying import Tying
from psframework.rpc.compute import compute


class Cluster(Caller, Groups, Runtime, Protocol):
    """As much of a cluster as a rank needs."""


class Updating:
    """How the stages of a rank are updated.

    Args:
        stages: of this rank, by index.
        seat: the rank, and the number among its replicas.
        cluster: makes process groups, and opens models on parameter servers.
    """

    def __init__(self, stages: Mapping[int, LocalStage], seat: tuple[int, int], cluster: Cluster) -> None:
        self._stages, self._cluster = stages, cluster
        self._served = {
            index: stage.learning for index, stage in stages.items() if isinstance(stage.learning, Served)
        }
        self._rank, self._replica = seat
        self._replicas = Replicas(cluster, seat)
        self._tying = Tying(stages, seat[1])

    async def open(self, job: str, plans: Mapping[int, StagePlan], *, first: bool = True) -> None:
        """Registers stages with the parameter servers that keep their parameters, as models of a job.

        Args:
            job: whose models.
            plans: of the stages.
            first: whether no others had their seat before.

        Raises:
            NameTaken: see `Served.open`.
        """
        for index, learning in self._served.items():
            await learning.open(self._cluster, job, plans[index], first=first)

    async def push(self) -> None:
        """Has parameter servers update what they keep; after a commit, and after going back to one."""
        for learning in self._served.values():
            await learning.push()

    async def settle(self, runner: Runner) -> None:
        """The last part of a run that an update follows: all who share a parameter have its whole gradient.

        The sum of squares of all gradients goes into the runner's report, if the update is held for it.
        """
        if len(runner.plan.services[self._rank]) > 1:
            runner.now("waiting for the gradients of its replicas")
        await self._replicas.reduce(runner.plan, runner.order.run, self._stages)
        await self._tying.reduce(runner)
        if runner.order.update == "held" and self._replica == 0:
            runner.power = await compute(self._power, runner)

    async def run(self, runner: Runner, coefficient: float | None = 1.0) -> None:
        """Updates all stages by the gradients of a run that has come to its end.

        Args:
            runner: of the run.
            coefficient: what gradients are multiplied by first; None: they are forgotten.
        """
        for index, stage in self._stages.items():
            if coefficient is None:
                stage.learning.forget()
            else:
                await runner.span("U", index, 0, stage.update, coefficient)

    async def reset(self) -> None:
        """A run has failed: what it waits for will not come."""
        await self._replicas.close()

    async def close(self) -> None:
        """Frees what it holds elsewhere."""
        await self._replicas.close()
        for learning in self._served.values():
            await learning.close()

    def _power(self, runner: Runner) -> float:
        return sum(
            stage.learning.power(self._tying.also_elsewhere(runner.plan, index))
            for index, stage in self._stages.items()
        )
