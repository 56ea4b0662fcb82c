"""A stage whose parameters are on a parameter server, which updates them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final

from psframework.backend import Array
from psframework.errors import NameTaken
from psframework.optim.optimizer import Optimizer
from psframework.optim.rule import rule_from_spec
from psframework.parameter_server.client import open_parameter_server, trainers_of
from psframework.parameter_server.handle import ParameterServer
from psframework.parameter_server.link import Runtime
from psframework.parameter_server.policy import BSP
from psframework.pipeline.finalizers import closed_with
from psframework.pipeline.learning import Learning, dense
from psframework.pipeline.plan import StagePlan
from psframework.rpc.deadline import Deadline

_SECONDS: Final = 10.0
"""Until a pipe whose driver died has left its model, and then some."""
_LOOK_SECONDS: Final = 0.1


class Served(Learning):
    """What such a stage learns with.

    An update only takes the gradients out. They are part of the commit that follows, and are pushed after it:
    whoever restores the commit pushes them if that has not been done, which the server's step tells. So each
    update is made once, whoever dies when.
    """

    _server: ParameterServer
    _pending: dict[str, Array] | None = None
    _step = 0  # of the server, before what is pending
    _restored = False

    async def open(self, cluster: Runtime, job: str, plan: StagePlan, *, first: bool = True) -> None:
        """Registers the module with the parameter server, by which it gets its values.

        Nobody else may train it meanwhile: a step would wait for another's, and the server's step would not
        tell any more whose gradients it has.

        Args:
            cluster: has the parameter server.
            job: of the model.
            plan: says which rule updates it, and its name.
            first: of its pipe; else the one that it replaces may count for a while.

        Raises:
            NameTaken: somebody trains the model already, and does not leave it.
        """
        assert plan.rule is not None
        if first:
            await _until_free(cluster, job, plan)
        self._server = await open_parameter_server(
            cluster,
            self._module,
            name=plan.parameter_server,
            job=job,
            optimizer=Optimizer(None, rule_from_spec(plan.rule)),
            consistency=BSP(trainers=1),
        )
        self._step = self._server.step
        # Else a pipe that nobody refers to any more would be a trainer that others wait for.
        closed_with(self, self._server)
        if first:  # and of two that come at once only the first stays
            there = await trainers_of(cluster, job, plan.parameter_server, Deadline.after(_SECONDS))
            if (earlier := min(there, default=self._server.slot)) < self._server.slot:
                await self._server.close()
                raise _taken(plan, there[earlier])

    def step(self) -> None:
        """Takes the gradients, to be pushed."""
        found = {name: each.grad for name, each in self.parameters.items() if each.grad is not None}
        self._pending = {name: dense(gradient).copy() for name, gradient in found.items()}
        self.forget()

    async def push(self) -> None:
        """Pushes what an update took, unless it was pushed before, and gets the new parameters."""
        pending, self._pending = self._pending, None
        if self._restored:
            await self._server.pull(timeout=0)  # a push that was given up comes to its end first
            self._restored = False
        if pending is None:
            return
        if self._server.step == self._step:
            for name, gradient in pending.items():
                self.parameters[name].grad = gradient
            await self._server.push_pull(timeout=0)
        self._step = self._server.step

    def snapshot(self) -> dict[str, Any]:
        """Buffers, and the gradients that are to be pushed, as copies."""
        state = self._module.state_dict()
        own = dict(self._module.named_parameters(remove_duplicate=False))
        buffers = {name: array for name, array in state.items() if name not in own}
        return {"module": buffers, "pending": self._pending, "step": self._step}

    def restore(self, snapshot: Mapping[str, Any]) -> None:
        """Goes back to a snapshot; `push` has to follow."""
        self.forget()
        self._module.load_state_dict(snapshot["module"], strict=False)
        self._pending, self._step = snapshot["pending"], snapshot["step"]
        self._restored = True

    async def close(self) -> None:
        """Leaves the parameter server."""
        await self._server.close()


async def _until_free(cluster: Runtime, job: str, plan: StagePlan) -> None:
    """Waits until nobody trains a model."""
    deadline = Deadline.after(_SECONDS)
    while there := await trainers_of(cluster, job, plan.parameter_server, Deadline.after(_SECONDS)):
        if deadline.expired:
            raise _taken(plan, there[min(there)])
        await asyncio.sleep(_LOOK_SECONDS)


def _taken(plan: StagePlan, trainer: str) -> NameTaken:
    return NameTaken(
        f"{trainer} already trains the model {plan.parameter_server!r} on the parameter server, where stage "
        f"{plan.index} was to have its parameters: close the pipeline that it is of, or take another name"
    )
