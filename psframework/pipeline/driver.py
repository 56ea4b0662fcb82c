"""The driver of a pipe: it plans, places, feeds, watches and collects. Data goes from stage to stage.

What fails leaves the pipe `unsettled`: before the next run all ranks go back to the newest commit, those that
are lost are replaced, and what was done since is done again.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import islice
from typing import Any, TypeVar

import numpy as np

from psframework.errors import ContextClosed, DeadlineExceeded, PeerLost
from psframework.nn.random import generator
from psframework.pipeline.blueprint import Blueprint
from psframework.pipeline.history import Done, History
from psframework.pipeline.microbatch import MicroBatches, join, split, split_tree
from psframework.pipeline.placement import Cluster, choose
from psframework.pipeline.plan import Key, Order, PipePlan, Report
from psframework.pipeline.post import Post
from psframework.pipeline.ranks import ASK_SECONDS, Ranks
from psframework.pipeline.scaling import Scaling
from psframework.pipeline.spec import PipelineOptions
from psframework.pipeline.ties import first_values
from psframework.pipeline.trees import Tree
from psframework.pipeline.turns import Turns
from psframework.rpc.deadline import Deadline

T = TypeVar("T")

RETRIES = 2
"""Times that a run is repeated though nobody is lost, since two ranks could not reach each other."""


class Driver:
    """Drives a pipe. Made by `open`.

    Args:
        cluster: calls the ranks.
        plan: of the pipe.
        blueprint: what the plan was made of.
        options: how it runs.

    Attributes:
        reports: of each seat, from the newest run.
    """

    def __init__(
        self, cluster: Cluster, plan: PipePlan, blueprint: Blueprint, options: PipelineOptions
    ) -> None:
        self._blueprint, self._options = blueprint, options
        self._scaling = Scaling(options.precision == "float16", options.max_norm)
        self._ranks = Ranks(cluster, plan, blueprint.stages)
        self._post = Post(plan.pipe, cluster)
        self._history = History(options.commit_every)
        self._turns = Turns()
        self._run_number = 0
        self._looking: set[int] = set()  # runs of inference and evaluation
        self._unsettled = False
        self._closed = False
        self.reports: Sequence[Report] = ()

    @classmethod
    async def open(
        cls, cluster: Cluster, blueprint: Blueprint, options: PipelineOptions, timeout: float
    ) -> Driver:
        """Chooses services and places the stages.

        Raises:
            RendezvousTimeout: there are not enough stage services.
            ArgumentError: the options can't be right.
        """
        services = iter(choose(cluster, sum(blueprint.replicas), options.on))
        places = tuple(tuple(islice(services, count)) for count in blueprint.replicas)
        seed = int(generator().integers(0, 1 << 62))
        stages = len(blueprint.stages)
        plan = PipePlan(secrets.token_hex(12), 1, places, stages, options.schedule, seed, blueprint.ties)
        driver = cls(cluster, plan, blueprint, options)
        deadline = Deadline.after(timeout)
        await driver._ranks.place_all(deadline)
        try:
            await driver._share_ties(deadline)
            await driver._ranks.call("commit", 0, 0, deadline=deadline)
        except BaseException:
            await driver.close()
            raise
        return driver

    @property
    def steps(self) -> int:
        """Steps that were completed."""
        return self._history.steps

    async def step(self, x: Tree, y: Tree, timeout: float | None = None, *, update: bool = True) -> float:
        """One step of training; returns the loss of the whole batch before it.

        Raises:
            DeadlineExceeded: it took too long; names the stage that it waited for.
            PeerLost: a stage is gone, and nobody took its place in time.
        """
        batch = split(x, y, self._options.microbatches)
        deadline = Deadline.after(self._seconds(timeout))
        async with self._turns.alone(deadline):
            done = self._history.place(batch, update)
            try:
                reports = await self._repeatedly(lambda: self._train(done, deadline), deadline)
                self._history.add(done, self._run_number)
                await self._repeatedly(lambda: self._push(deadline), deadline)
            except BaseException:
                self._unsettled = True  # some ranks may have updated already
                raise
        return _loss(reports, batch)

    async def evaluate(self, x: Tree, y: Tree, timeout: float | None = None) -> float:
        """The loss of a batch, in evaluation mode."""
        batch = split(x, y, self._options.microbatches)
        reports = await self._look(batch.inputs, batch.targets, self._seconds(timeout))
        return _loss(reports, batch)

    async def infer(self, x: Tree, timeout: float | None = None) -> Tree:
        """What the last stage answers, in evaluation mode."""
        parts = split_tree(x, self._options.microbatches)
        reports = await self._look(parts, None, self._seconds(timeout))
        outputs = {number: tree for report in reports for number, tree in report.outputs.items()}
        return join([outputs[number] for number in range(len(parts))])

    async def state_dict(self, timeout: float | None = None) -> dict[str, Any]:
        """Parameters and buffers of all stages, by the names that they have in the pipe."""
        deadline = Deadline.after(self._seconds(timeout))
        async with self._turns.alone(deadline):
            states = await self._repeatedly(
                lambda: self._ranks.call("state_dict", deadline=deadline), deadline
            )
        return self._blueprint.naming.join(
            {stage: arrays for state in states for stage, arrays in state.items()}
        )

    async def load_state_dict(self, state: Mapping[str, Any], timeout: float | None = None) -> None:
        """Gives all stages the values of a state, and commits them.

        Raises:
            ModelMismatch: names or shapes differ.
            ArgumentError: a stage has its parameters on a parameter server.
        """
        self._blueprint.check_loads()
        parts, ranks = self._blueprint.naming.split(state), self._ranks
        deadline = Deadline.after(self._seconds(timeout))
        async with self._turns.alone(deadline):
            await self._settle(deadline)
            self._unsettled = True  # if one refuses, all go back
            for seat in ranks.seats:
                own = {stage: parts[stage] for stage in ranks.plan.stages_of(seat.rank)}
                await ranks.call("load_state_dict", own, deadline=deadline, seats=[seat])
            await self._share_ties(deadline)
            number = self._next_run()
            await ranks.call("commit", number, self._history.commit, deadline=deadline)
            self._history.committed(number)
            self._unsettled = False

    async def close(self) -> None:
        """Frees the stages; what runs ends with ContextClosed."""
        if not self._closed:
            self._closed = True
            await self._ranks.close()

    async def _repeatedly(self, run: Callable[[], Awaitable[T]], deadline: Deadline) -> T:
        """Runs, and again if ranks are lost and replaced."""
        fruitless = 0
        while True:
            lost = set(self._ranks.lost)
            try:
                await self._settle(deadline)
                return await run()
            except PeerLost:
                self._unsettled = True
                await self._ranks.look(Deadline.after(ASK_SECONDS))
                fruitless += self._ranks.lost <= lost
                if deadline.expired or fruitless > RETRIES:
                    raise

    async def _settle(self, deadline: Deadline) -> None:
        """If something failed: all ranks go back to the newest commit, and do again what came after it.

        Raises:
            PeerLost: a stage is gone, and nobody took its place in time.
            DeadlineExceeded: a stage did not stop in time.
        """
        if self._closed:
            raise ContextClosed("this pipeline is closed")
        if not self._unsettled and not self._ranks.lost:
            return
        ranks, commit = self._ranks, self._history.commit
        await ranks.look(Deadline.after(min(ASK_SECONDS, max(deadline.remaining(), 0.1))))
        why = "this run was given up"
        await self._go_back(why, deadline)
        if ranks.lost:
            await ranks.replace_lost(commit, self._run_number, deadline)
            await self._go_back(why, deadline)
            await ranks.call("keep_elsewhere", commit, commit, deadline=deadline)
        for done in self._history.since_commit:
            await self._train(done, deadline)
        self._unsettled = False

    async def _share_ties(self, deadline: Deadline) -> None:
        """Gives all copies of a tied parameter the values of the first."""
        ranks = self._ranks
        values: dict[tuple[int, str], Any] = {}
        for seat in ranks.seats:
            names = [
                place
                for tie in ranks.plan.ties
                for place in tie
                if place[0] in ranks.plan.stages_of(seat.rank)
            ]
            if names and seat.replica == 0:
                values |= (await ranks.call("shared", names, deadline=deadline, seats=[seat]))[0]
        firsts = first_values(ranks.plan.ties, values)
        for seat in ranks.seats:
            own = {
                place: array for place, array in firsts.items() if place[0] in ranks.plan.stages_of(seat.rank)
            }
            if own:
                await ranks.call("share", own, deadline=deadline, seats=[seat])

    async def _go_back(self, why: str, deadline: Deadline) -> None:
        """Those that are there stand at the newest commit afterwards."""
        ranks = self._ranks
        there = [seat for seat in ranks.seats if seat not in ranks.lost]
        await ranks.call("abort", self._run_number, why, deadline=deadline, seats=there)
        await ranks.call("go_back", ranks.plan, self._history.commit, deadline=deadline, seats=there)

    async def _train(self, done: Done, deadline: Deadline) -> Sequence[Report]:
        history, batch, scaling = self._history, done.batch, self._scaling
        order = Order(
            self._next_run(),
            done.step,
            len(batch),
            tuple(weight * scaling.scale(done.step) for weight in batch.weights),
            fresh=done.fresh,
            update="" if not done.update else "held" if scaling.needed else "now",
            commit=history.commits(done),
            complete=history.commit,
            over=self._run_number - 1,
        )
        reports = await self._run(order, batch.inputs, batch.targets, deadline)
        return await self._update(order, reports, deadline) if order.update == "held" else reports

    async def _update(self, order: Order, reports: Sequence[Report], deadline: Deadline) -> Sequence[Report]:
        """The update of a run that held it, now that the gradients of all stages are known."""
        coefficient = self._scaling.coefficient(order.step, sum(report.power for report in reports))
        self._scaling.forget(self._history.steps_at_commit)
        self.reports = await self._ranks.call("update", order.run, coefficient, deadline=deadline)
        return self.reports

    async def _push(self, deadline: Deadline) -> Sequence[Report]:
        """Has parameter servers update the stages that they keep: the step is committed everywhere."""
        ranks, stages = self._ranks, self._blueprint.stages
        served = {stage.index % ranks.plan.ranks for stage in stages if stage.parameter_server}
        seats = [seat for seat in ranks.seats if seat.rank in served]
        if seats:
            await ranks.call("push", deadline=deadline, seats=seats)
        return self.reports

    async def _look(
        self, inputs: Sequence[Tree], targets: Sequence[Tree] | None, seconds: float
    ) -> Sequence[Report]:
        deadline = Deadline.after(seconds)

        async def run() -> Sequence[Report]:
            over = min(self._looking, default=self._run_number + 1) - 1
            order = Order(
                self._next_run(), self.steps, len(inputs), update="", over=over, train=False,
                targets=targets is not None,
            )  # fmt: skip
            self._looking.add(order.run)
            try:
                return await self._run(order, inputs, targets, deadline)
            finally:
                self._looking.discard(order.run)

        async with self._turns.together(deadline):
            if not self._unsettled:  # no step failed while this waited
                try:
                    return await run()
                except PeerLost:
                    self._unsettled = True
        async with self._turns.alone(deadline):
            return await self._repeatedly(run, deadline)

    async def _run(
        self, order: Order, inputs: Sequence[Tree], targets: Sequence[Tree] | None, deadline: Deadline
    ) -> Sequence[Report]:
        """Has all ranks run, and feeds them."""
        if self._closed:
            raise ContextClosed("this pipeline is closed")
        left = max(deadline.remaining(), 0.0)
        calls = self._ranks.start("run", order, deadline=Deadline.after(left + 3 * ASK_SECONDS))
        seats, last = len(calls), self._ranks.plan.stages - 1
        try:
            for number, tree in enumerate(inputs):
                calls.append(self._feed(order, "F", 0, number, tree))
                if targets is not None:
                    calls.append(self._feed(order, "T", last, number, targets[number]))
            _, pending = await asyncio.wait(calls, timeout=left, return_when=asyncio.FIRST_EXCEPTION)
            for call in calls:
                if call.done():
                    call.result()  # raises what it has
            if pending:
                raise DeadlineExceeded(await self._blame())  # while they are still at it
        finally:
            for call in calls:
                call.cancel()
        self.reports = [call.result() for call in calls[:seats]]
        return self.reports

    def _feed(self, order: Order, kind: str, stage: int, number: int, tree: Tree) -> Any:
        to = self._ranks.plan.service_of(stage, number)
        return self._post.send(to, Key(order.run, kind, stage, number), tree)

    async def _blame(self) -> str:
        """What to say of a deadline that passed: who did not come to an end, and where it is."""
        standings = await self._ranks.look(Deadline.after(ASK_SECONDS))
        silent = [
            f"{self._ranks.words(seat)} does not answer" for seat, it in standings.items() if it is None
        ]
        busy = [(seat, it) for seat, it in standings.items() if it is not None and it.doing]
        computing = [(seat, it) for seat, it in busy if it.doing.startswith("computing")] or busy
        texts = silent + [
            f"{self._ranks.words(seat)} has been {it.doing} for {it.seconds:.1f} s" for seat, it in computing
        ]
        lost = [f"{self._ranks.words(seat)} is gone" for seat in sorted(self._ranks.lost)]
        return f"the step did not end in time: {'; '.join(lost + texts)}"

    def _next_run(self) -> int:
        self._run_number += 1
        return self._run_number

    def _seconds(self, timeout: float | None) -> float:
        return self._options.timeout if timeout is None else timeout


def _loss(reports: Sequence[Report], batch: MicroBatches) -> float:
    losses = {number: loss for report in reports for number, loss in report.losses.items()}
    return float(np.dot([losses[number] for number in range(len(batch))], batch.weights))
