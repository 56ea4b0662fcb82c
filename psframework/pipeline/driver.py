"""The driver of a pipe: it plans, places, feeds, watches and collects. Data goes from stage to stage.

What fails leaves the pipe unsettled: before the next run all ranks go back to the newest commit, those that
are lost are replaced, and what was done since is done again (`recovery`).
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

from psframework.errors import PeerLost
from psframework.pipeline.blueprint import Blueprint
from psframework.pipeline.microbatch import join, split, split_tree
from psframework.pipeline.outcome import Outcome, lanes, loss_of, outcome
from psframework.pipeline.placement import Cluster, choose
from psframework.pipeline.plan import Order, PipePlan, Report
from psframework.pipeline.post import Post
from psframework.pipeline.ranks import Ranks
from psframework.pipeline.recovery import Recovery
from psframework.pipeline.runs import Runs
from psframework.pipeline.serving import Serving
from psframework.pipeline.spec import PipelineOptions
from psframework.pipeline.states import States
from psframework.pipeline.training import Training
from psframework.pipeline.trees import Tree
from psframework.pipeline.turns import Turns
from psframework.rpc.compute import compute
from psframework.rpc.deadline import Deadline


class Driver:
    """Drives a pipe. Made by `open`.

    Args:
        cluster: calls the ranks.
        plan: of the pipe.
        blueprint: what the plan was made of.
        options: how it runs.
    """

    def __init__(
        self, cluster: Cluster, plan: PipePlan, blueprint: Blueprint, options: PipelineOptions
    ) -> None:
        self._blueprint, self._options = blueprint, options
        self._ranks = Ranks(cluster, plan, blueprint.stages)
        self._runs = Runs(self._ranks, Post(plan.pipe, cluster))
        served = {stage.index % plan.ranks for stage in blueprint.stages if stage.parameter_server}
        self._training = Training(self._ranks, self._runs, options, served)
        self._recovery = Recovery(self._ranks, self._runs, self._training)
        self._states = States(self._ranks, blueprint.naming)
        self._serving = Serving(self._infer, self._runs.blame, options.infer_rows)
        self._turns = Turns()
        self._looking: set[int] = set()  # runs of inference and evaluation

    @classmethod
    async def open(
        cls, cluster: Cluster, blueprint: Blueprint, options: PipelineOptions, seed: int, timeout: float
    ) -> Driver:
        """Chooses services and places the stages.

        Args:
            cluster: calls the ranks.
            blueprint: of the pipe.
            options: how it runs.
            seed: decides initial values and what dropout drops.
            timeout: seconds.

        Raises:
            RendezvousTimeout: there are not enough stage services.
            ArgumentError: the options can't be right.
        """
        services = iter(choose(cluster, sum(blueprint.replicas), options.on))
        places = tuple(tuple(islice(services, count)) for count in blueprint.replicas)
        stages = len(blueprint.stages)
        plan = PipePlan(
            secrets.token_hex(12), 1, places, stages, options.schedule, seed, blueprint.ties, blueprint.job
        )
        driver = cls(cluster, plan, blueprint, options)
        deadline = Deadline.after(timeout)
        await driver._ranks.place_all(deadline)
        try:
            await driver._states.share_ties(deadline)
            await driver._ranks.call("commit", 0, 0, deadline=deadline)
        except BaseException:
            await driver.close()
            raise
        return driver

    @property
    def services(self) -> tuple[str, ...]:
        """Names of those that hold stages, in order."""
        return lanes(self._ranks.plan)

    @property
    def timeout(self) -> float:
        """Seconds of a call that brings none; 0: no limit."""
        return self._options.timeout

    async def statistics(self) -> dict[str, int]:
        """Counts of steps that were completed, and of requests for inference and the batches they took."""
        return {
            "steps": self._training.history.steps,
            "infer_requests": self._serving.requests,
            "infer_batches": self._serving.batches,
        }

    async def step(self, x: Tree, y: Tree, timeout: float | None = None, *, update: bool = True) -> Outcome:
        """One step of training, with the loss of the whole batch before it.

        Raises:
            DeadlineExceeded: it took too long; names the stage that it waited for.
            PeerLost: a stage is gone, and nobody took its place in time.
        """
        self._blueprint.check_loss()
        batch = split(x, y, self._options.microbatches)
        deadline = self._deadline(timeout)
        training, recovery = self._training, self._recovery
        async with self._turns.alone(deadline):
            done = training.history.place(batch, update)
            if not training.history.commits(done):  # a later step may do it again
                done = replace(done, batch=await compute(batch.copied))
            try:
                reports = await recovery.repeatedly(lambda: training.train(done, deadline), deadline)
                training.history.add(done, self._runs.number)
                await recovery.repeatedly(lambda: training.push(deadline), deadline)
            except BaseException:
                recovery.unsettled = True  # some ranks may have updated already
                raise
        found = outcome(reports, batch, self._ranks.plan, self._runs.clocks)
        return replace(found, steps=training.history.steps)

    async def evaluate(self, x: Tree, y: Tree, timeout: float | None = None) -> float:
        """The loss of a batch, in evaluation mode."""
        self._blueprint.check_loss()
        batch = split(x, y, self._options.microbatches)
        return loss_of(await self._look(batch.inputs, batch.targets, self._deadline(timeout)), batch)

    async def infer(self, x: Tree, timeout: float | None = None) -> Tree:
        """What the last stage answers, in evaluation mode."""
        return await self._serving.infer(x, self._deadline(timeout))

    async def state_dict(self, timeout: float | None = None) -> dict[str, Any]:
        """Parameters and buffers of all stages, by the names that they have in the pipe."""
        deadline = self._deadline(timeout)
        async with self._turns.alone(deadline):
            return await self._recovery.repeatedly(lambda: self._states.read(deadline), deadline)

    async def load_state_dict(self, state: Mapping[str, Any], timeout: float | None = None) -> None:
        """Gives all stages the values of a state, and commits them.

        Raises:
            ModelMismatch: names or shapes differ.
            ArgumentError: a stage has its parameters on a parameter server.
        """
        self._blueprint.check_loads()
        parts, history = self._blueprint.naming.split(state), self._training.history
        deadline = self._deadline(timeout)
        async with self._turns.alone(deadline):
            await self._recovery.settle(deadline)
            self._recovery.unsettled = True  # if one refuses, all go back
            await self._states.load(parts, deadline)
            number = self._runs.next()
            await self._ranks.call("commit", number, history.commit, deadline=deadline)
            history.committed(number)
            self._recovery.unsettled = False

    async def close(self) -> None:
        """Frees the stages; what runs ends with ContextClosed."""
        if not self._runs.closed:
            self._runs.closed = True
            await self._serving.close()
            await self._ranks.close()

    async def _infer(self, x: Tree, deadline: Deadline) -> Tree:
        """One run of inference."""
        parts = split_tree(x, self._options.microbatches)
        reports = await self._look(parts, None, deadline)
        outputs = {number: tree for report in reports for number, tree in report.outputs.items()}
        return join([outputs[number] for number in range(len(parts))])

    async def _look(
        self, inputs: Sequence[Tree], targets: Sequence[Tree] | None, deadline: Deadline
    ) -> list[Report]:
        """A run that changes nothing; several may be under way."""
        recovery = self._recovery

        async def run() -> list[Report]:
            over = min(self._looking, default=self._runs.number + 1) - 1
            order = Order(
                self._runs.next(), self._training.history.steps, len(inputs), update="", over=over,
                train=False, targets=targets is not None,
            )  # fmt: skip
            self._looking.add(order.run)
            try:
                return await self._runs.go(order, inputs, targets, deadline)
            finally:
                self._looking.discard(order.run)

        async with self._turns.together(deadline):
            if not recovery.unsettled:  # no step failed while this waited
                try:
                    return await run()
                except PeerLost:
                    recovery.unsettled = True
        async with self._turns.alone(deadline):
            return await recovery.repeatedly(run, deadline)

    def _deadline(self, timeout: float | None) -> Deadline:
        seconds = self.timeout if timeout is None else timeout
        return Deadline.after(seconds or None)
