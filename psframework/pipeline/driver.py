"""The driver of a pipe: it plans, places, feeds, watches and collects. Data goes from stage to stage."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from psframework.errors import ArgumentError, ContextClosed, RendezvousTimeout
from psframework.membership.view import Member
from psframework.nn.random import generator
from psframework.pipeline.microbatch import MicroBatches, join, split, split_tree
from psframework.pipeline.plan import Key, Order, PipePlan, Report, StagePlan
from psframework.pipeline.post import Caller, Post
from psframework.pipeline.servicer import PLACE
from psframework.pipeline.spec import ROLE, PipelineOptions
from psframework.pipeline.trees import Tree
from psframework.rpc.deadline import Deadline
from psframework.rref.handle import RRef


class Cluster(Caller, Protocol):
    """As much of a cluster as a driver needs."""

    def members(self, role: str | None = None) -> tuple[Member, ...]:
        """The live members."""
        ...

    def remote(
        self, to: Any, fn: Any, args: Any = (), kwargs: Any = None, timeout: float | None = None
    ) -> RRef:
        """Runs a function there, and leaves the result there."""
        ...


class Driver:
    """Drives a pipe. Made by `open`.

    Args:
        cluster: calls the ranks.
        plan: of the pipe.
        stages: of all ranks, in order.
        options: how it runs.
    """

    def __init__(
        self, cluster: Cluster, plan: PipePlan, stages: Sequence[StagePlan], options: PipelineOptions
    ) -> None:
        self._cluster = cluster
        self._plan, self._stages, self._options = plan, stages, options
        self._post = Post(plan.pipe, cluster)
        self._hosts: list[RRef] = []
        self._runs = 0
        self._steps = 0
        self._turn = asyncio.Lock()
        self._closed = False

    @classmethod
    async def open(
        cls, cluster: Cluster, stages: Sequence[StagePlan], options: PipelineOptions, timeout: float
    ) -> Driver:
        """Chooses services and places the stages.

        Raises:
            RendezvousTimeout: there are not enough stage services.
        """
        services = choose(cluster, len(stages) // options.virtual_stages, options.on)
        seed = int(generator().integers(0, 1 << 62))
        plan = PipePlan(
            secrets.token_hex(12), 1, tuple((name,) for name in services), len(stages), options.schedule, seed
        )
        driver = cls(cluster, plan, stages, options)
        await driver._place(Deadline.after(timeout))
        return driver

    async def step(self, x: Tree, y: Tree, timeout: float | None = None) -> float:
        """One step of training; returns the loss of the whole batch before it."""
        batch = split(x, y, self._options.microbatches)
        async with self._turn:
            reports = await self._train(batch, Deadline.after(self._seconds(timeout)))
            self._steps += 1
        losses = {number: loss for report in reports for number, loss in report.losses.items()}
        return float(np.dot([losses[number] for number in range(len(batch))], batch.weights))

    async def infer(self, x: Tree, timeout: float | None = None) -> Tree:
        """What the last stage answers, in evaluation mode."""
        parts = split_tree(x, self._options.microbatches)
        deadline = Deadline.after(self._seconds(timeout))
        async with self._turn:
            order = Order(self._next_run(), self._steps, len(parts), train=False, targets=False)
            reports = await self._run(order, parts, None, deadline)
        outputs = {number: tree for report in reports for number, tree in report.outputs.items()}
        return join([outputs[number] for number in range(len(parts))])

    async def state_dict(self, timeout: float | None = None) -> dict[str, Any]:
        """Parameters and buffers of all stages, by "STAGE.NAME"."""
        async with self._turn:
            states = await self._all("state_dict", self._seconds(timeout))
        return {
            f"{stage}.{name}": array
            for state in states
            for stage, arrays in sorted(state.items())
            for name, array in arrays.items()
        }

    async def close(self) -> None:
        """Frees the stages."""
        if self._closed:
            return
        self._closed = True
        hosts, self._hosts = self._hosts, []
        calls = [host.rpc_async(timeout=5.0).close() for host in hosts]
        await asyncio.gather(*calls, return_exceptions=True)
        for host in hosts:
            host.close()

    async def _place(self, deadline: Deadline) -> None:
        plan = self._plan
        for rank in range(plan.ranks):
            stages = [stage for stage in self._stages if stage.index % plan.ranks == rank]
            service = plan.services[rank][0]
            self._hosts.append(
                self._cluster.remote(service, PLACE, (plan, rank, stages), timeout=deadline.remaining())
            )
        await asyncio.gather(*(host.confirmed_by_owner() for host in self._hosts))

    async def _train(self, batch: MicroBatches, deadline: Deadline) -> Sequence[Report]:
        order = Order(self._next_run(), self._steps, len(batch), tuple(batch.weights), complete=self._steps)
        return await self._run(order, batch.inputs, batch.targets, deadline)

    async def _run(
        self, order: Order, inputs: Sequence[Tree], targets: Sequence[Tree] | None, deadline: Deadline
    ) -> Sequence[Report]:
        """Has all ranks run, and feeds them."""
        if self._closed:
            raise ContextClosed("this pipeline is closed")
        calls: list[asyncio.Future[Any]]
        calls = [host.rpc_async(timeout=deadline.remaining()).run(order) for host in self._hosts]
        last = self._plan.stages - 1
        for number, tree in enumerate(inputs):
            calls.append(self._feed(order, "F", 0, number, tree))
            if targets is not None:
                calls.append(self._feed(order, "T", last, number, targets[number]))
        try:
            results = await asyncio.gather(*calls)
        finally:
            for call in calls:
                call.cancel()
        return results[: len(self._hosts)]

    def _feed(self, order: Order, kind: str, stage: int, number: int, tree: Tree) -> asyncio.Future[Any]:
        to = self._plan.service_of(stage, number)
        sent = self._post.send(to, Key(order.run, kind, stage, number), tree)
        assert sent is not None
        return asyncio.ensure_future(sent)

    async def _all(self, method: str, timeout: float, *args: Any) -> list[Any]:
        return await asyncio.gather(
            *(getattr(host.rpc_async(timeout=timeout), method)(*args) for host in self._hosts)
        )

    def _next_run(self) -> int:
        self._runs += 1
        return self._runs

    def _seconds(self, timeout: float | None) -> float:
        return self._options.timeout if timeout is None else timeout


def choose(cluster: Cluster, ranks: int, on: Sequence[str] | None) -> list[str]:
    """Names of the services that hold the ranks.

    Raises:
        RendezvousTimeout: there are not enough.
        ArgumentError: `on` names another number of them.
    """
    if on is not None:
        if len(on) != ranks:
            raise ArgumentError(f"on= names {len(on)} services, {ranks} are needed")
        return list(on)
    there = sorted((member.name for member in cluster.members(ROLE)), key=lambda name: (len(name), name))
    if len(there) < ranks:
        raise RendezvousTimeout(
            f"{ranks} stage services are needed, {len(there)} are here ({', '.join(there) or 'none'}): "
            "start more with `psf serve pipeline-stage`"
        )
    return there[:ranks]
