"""Training of a pipe: each step as an order to all ranks, and what has to be done again after a failure."""

from __future__ import annotations

from collections.abc import Sequence

from psframework.pipeline.history import Done, History
from psframework.pipeline.plan import Order, Report
from psframework.pipeline.ranks import Ranks
from psframework.pipeline.runs import Runs
from psframework.pipeline.scaling import Scaling
from psframework.pipeline.spec import PipelineOptions
from psframework.rpc.deadline import Deadline


class Training:
    """The steps of one pipe.

    Args:
        ranks: of the pipe.
        runs: of the pipe.
        options: how it runs.
        served: ranks with parameters on a parameter server.

    Attributes:
        history: steps that were made.
    """

    def __init__(self, ranks: Ranks, runs: Runs, options: PipelineOptions, served: set[int]) -> None:
        self._ranks, self._runs, self._served = ranks, runs, served
        self._scaling = Scaling(options.precision == "float16", options.max_norm)
        self.history = History(options.commit_every)

    async def train(self, done: Done, deadline: Deadline) -> list[Report]:
        """Trains on a batch; the same whenever it is done again."""
        batch, scaling, runs = done.batch, self._scaling, self._runs
        order = Order(
            runs.next(),
            done.step,
            len(batch),
            tuple(weight * scaling.scale(done.step) for weight in batch.weights),
            fresh=done.fresh,
            earlier=done.earlier,
            update="" if not done.update else "held" if scaling.needed else "now",
            commit=self.history.commits(done),
            complete=self.history.commit,
            over=runs.number - 1,
        )
        reports = await runs.go(order, batch.inputs, batch.targets, deadline)
        return await self._update(order, reports, deadline) if order.update == "held" else reports

    async def push(self, deadline: Deadline) -> None:
        """Has parameter servers update the stages that they keep: the step is committed everywhere."""
        seats = [seat for seat in self._ranks.seats if seat.rank in self._served]
        if seats:
            await self._runs.call("push", deadline=deadline, seats=seats)

    async def _update(self, order: Order, reports: Sequence[Report], deadline: Deadline) -> list[Report]:
        """The update of a run that held it, now that the gradients of all stages are known."""
        coefficient = self._scaling.coefficient(order.step, sum(report.power for report in reports))
        self._scaling.forget(self.history.steps_at_commit)
        return await self._runs.call("update", order.run, coefficient, deadline=deadline)
