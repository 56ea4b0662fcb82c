"""One run through the stages of one rank: each action waits for data, computes, and sends."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from psframework.errors import ArgumentError, ContextClosed
from psframework.pipeline.clocks import kernel
from psframework.pipeline.mailbox import Mailbox
from psframework.pipeline.plan import Key, Order, PipePlan, Report, StagePlan
from psframework.pipeline.post import Post
from psframework.pipeline.schedule import Action, Kind
from psframework.pipeline.stage import LocalStage, Result, Task
from psframework.pipeline.trees import Tree
from psframework.rpc.compute import compute


class Runner:
    """A run.

    Args:
        plan: of the pipe.
        order: what is to be done.
        stages: of this rank, by index.
        plans: theirs.
        mailbox: where data comes.
        post: where it goes.

    Attributes:
        plan, order: as given.
        power: sum of squares of all gradients, where somebody asked for it.
        doing: what it does, in words; empty: nothing.
        since: when it began with that, by `time.monotonic`.
    """

    def __init__(
        self,
        plan: PipePlan,
        order: Order,
        stages: Mapping[int, LocalStage],
        plans: Mapping[int, StagePlan],
        mailbox: Mailbox,
        post: Post,
    ) -> None:
        self.plan, self.order = plan, order
        self._stages, self._plans = stages, plans
        self._mailbox, self._post = mailbox, post
        self._sent: list[asyncio.Future[Any]] = []
        self._losses: dict[int, float] = {}
        self._outputs: dict[int, Tree] = {}
        self._spans: list[tuple[str, int, int, float, float]] = []
        self.power = 0.0
        self.doing = ""
        self.since = time.monotonic()

    async def go(
        self, actions: Sequence[Action], then: Callable[[Runner], Awaitable[None]] | None = None
    ) -> None:
        """Runs the actions in their order, and waits until what they sent has arrived.

        Args:
            actions: of this rank.
            then: called when they are done, while messages of this run still come and go.

        Raises:
            Exception: of a stage, with a note that names it and the micro-batch.
            PeerLost: a rank that is sent to is gone.
        """
        try:
            for action in actions:
                self.now(f"waiting for the data of {_words(action)}")
                await self._act(action)
            if then is not None:
                await then(self)
            self.now("waiting until what it sent has arrived")
            await asyncio.gather(*self._sent)
        finally:
            self.doing = ""
            for sent in self._sent:
                sent.cancel()
            self._mailbox.end(self.order.run, ContextClosed("this run has ended"))

    def report(self) -> Report:
        """What came of it."""
        peak = {index: stage.peak for index, stage in self._stages.items()}
        spans, now = tuple(self._spans), time.perf_counter()
        return Report(self._losses, self._outputs, spans, peak, self.power, now, kernel())

    async def span(self, kind: str, stage: int, microbatch: int, function: Any, *args: Any) -> Any:
        """Runs a function in the compute thread, and notes when."""
        self.now(f"computing {kind} of stage {stage}")
        began, ended, result = await compute(_timed, function, *args)
        self._spans.append((kind, stage, microbatch, began, ended))
        return result

    async def take(self, key: Key) -> Any:
        """Waits for something of this run."""
        return await self._mailbox.take(key)

    def send(self, service: str, key: Key, tree: Tree) -> None:
        """Sends something, without waiting. If it can't arrive, the run ends at its next wait."""
        sent = self._post.send(service, key, tree)
        if sent is not None:
            future = asyncio.ensure_future(sent)
            future.add_done_callback(self._has_arrived)
            self._sent.append(future)

    def now(self, doing: str) -> None:
        """Notes what it does from now on."""
        self.doing, self.since = doing, time.monotonic()

    def _has_arrived(self, sent: asyncio.Future[Any]) -> None:
        error = None if sent.cancelled() else sent.exception()
        if error is not None:  # what would come in return never will
            self._mailbox.end(self.order.run, error)

    async def _act(self, action: Action) -> None:
        stage = self._stages[action.stage]
        if action.kind is Kind.FORWARD:
            await self._forward(action, stage)
        elif action.kind is Kind.BACKWARD:
            await self._backward(action, stage)
        else:
            await self._compute(action, stage.backward_weight, action.microbatch)

    async def _forward(self, action: Action, stage: LocalStage) -> None:
        index, number, order = action.stage, action.microbatch, self.order
        last = index == self.plan.stages - 1
        inputs = await self._take(action, "F")
        targets = await self._take(action, "T") if last and order.targets else None
        skips = {name: await self._take(action, f"S:{name}") for name in self._plans[index].pops}
        weight = order.weights[number] if order.weights else 1.0
        task = Task(order.step, number, inputs, targets, skips, weight, order.earlier)
        run = stage.forward if order.train else stage.predict
        result: Result = await self._compute(action, run, task)
        for name, array in result.skips.items():
            self._send(_target(self._plans[index], name), number, f"S:{name}", array)
        if result.loss is not None:
            self._losses[number] = result.loss
        if not last:
            self._send(index + 1, number, "F", result.outputs)
        elif not order.train:
            self._outputs[number] = result.outputs

    async def _backward(self, action: Action, stage: LocalStage) -> None:
        index, number, plan = action.stage, action.microbatch, self._plans[action.stage]
        last = index == self.plan.stages - 1
        gradients = None if last else await self._take(action, "B")
        skips = {name: await self._take(action, f"G:{name}") for name in plan.stashes}
        run = stage.backward_input if self.plan.schedule == "zb-h1" else stage.backward
        result: Result = await self._compute(action, run, number, gradients, skips)
        for name, array in result.skips.items():
            self._send(plan.pops[name], number, f"G:{name}", array)
        if index > 0:
            self._send(index - 1, number, "B", result.outputs)

    async def _compute(self, action: Action, function: Any, *args: Any) -> Any:
        try:
            return await self.span(str(action.kind), action.stage, action.microbatch, function, *args)
        except Exception as error:
            error.add_note(f"in {_words(action)}")
            raise

    async def _take(self, action: Action, kind: str) -> Any:
        return await self.take(Key(self.order.run, kind, action.stage, action.microbatch))

    def _send(self, stage: int, microbatch: int, kind: str, tree: Tree) -> None:
        self.send(self.plan.service_of(stage, microbatch), Key(self.order.run, kind, stage, microbatch), tree)


def _timed(function: Any, *args: Any) -> tuple[float, float, Any]:
    began = time.perf_counter()
    result = function(*args)
    return began, time.perf_counter(), result


def _target(plan: StagePlan, name: str) -> int:
    """The stage that pops what this one stashed."""
    if name not in plan.stashes:
        raise ArgumentError(
            f"stage {plan.index} stashed {name!r}, which the class of no stage is declared to pop: put "
            "@psf.pipeline.skippable on the classes of both stages, not only on modules inside them"
        )
    return plan.stashes[name]


_NAMES = {Kind.FORWARD: "the forward", Kind.BACKWARD: "the backward", Kind.WEIGHT: "the weight gradient"}


def _words(action: Action) -> str:
    return f"{_NAMES[action.kind]} of stage {action.stage}, micro-batch {action.microbatch}"
