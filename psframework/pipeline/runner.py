"""One run through the stages of one rank: each action waits for data, computes, and sends."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Any

from psframework.errors import PsfError
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
        self._plan, self._order = plan, order
        self._stages, self._plans = stages, plans
        self._mailbox, self._post = mailbox, post
        self._sent: list[asyncio.Future[Any]] = []
        self._losses: dict[int, float] = {}
        self._outputs: dict[int, Tree] = {}
        self._spans: list[tuple[str, int, int, float, float]] = []
        self.doing = ""
        self.since = time.monotonic()

    async def go(self, actions: Sequence[Action]) -> None:
        """Runs the actions in their order, and waits until what they sent has arrived.

        Raises:
            Exception: of a stage, with a note that names it and the micro-batch.
            PeerLost: a rank that is sent to is gone.
        """
        try:
            for action in actions:
                self._now(f"waiting for the data of {_words(action)}")
                await self._act(action)
            self._now("waiting until what it sent has arrived")
            await asyncio.gather(*self._sent)
        finally:
            self.doing = ""
            for sent in self._sent:
                sent.cancel()
            self._mailbox.end(self._order.run)

    def report(self) -> Report:
        """What came of it."""
        peak = {index: stage.peak for index, stage in self._stages.items()}
        return Report(self._losses, self._outputs, tuple(self._spans), peak, time.perf_counter())

    async def span(self, kind: str, stage: int, microbatch: int, function: Any, *args: Any) -> Any:
        """Runs a function in the compute thread, and notes when."""
        self._now(f"computing {kind} of stage {stage}")
        began, ended, result = await compute(_timed, function, *args)
        self._spans.append((kind, stage, microbatch, began, ended))
        return result

    async def _act(self, action: Action) -> None:
        stage = self._stages[action.stage]
        try:
            if action.kind is Kind.FORWARD:
                await self._forward(action, stage)
            elif action.kind is Kind.BACKWARD:
                await self._backward(action, stage)
            else:
                await self._compute(action, stage.backward_weight, action.microbatch)
        except (PsfError, asyncio.CancelledError):
            raise
        except Exception as error:
            error.add_note(f"in {_words(action)}")
            raise

    async def _forward(self, action: Action, stage: LocalStage) -> None:
        index, number, order = action.stage, action.microbatch, self._order
        last = index == self._plan.stages - 1
        inputs = await self._take(action, "F")
        targets = await self._take(action, "T") if last and order.targets else None
        skips = {name: await self._take(action, f"S:{name}") for name in self._plans[index].pops}
        weight = order.weights[number] if order.weights else 1.0
        task = Task(order.step, number, inputs, targets, skips, weight)
        run = stage.forward if order.train else stage.predict
        result: Result = await self._compute(action, run, task)
        for name, array in result.skips.items():
            self._send(self._plans[index].stashes[name], number, f"S:{name}", array)
        if result.loss is not None:
            self._losses[number] = result.loss
        if not last:
            self._send(index + 1, number, "F", result.outputs)
        elif not order.train:
            self._outputs[number] = result.outputs

    async def _backward(self, action: Action, stage: LocalStage) -> None:
        index, number, plan = action.stage, action.microbatch, self._plans[action.stage]
        last = index == self._plan.stages - 1
        gradients = None if last else await self._take(action, "B")
        skips = {name: await self._take(action, f"G:{name}") for name in plan.stashes}
        run = stage.backward_input if self._plan.schedule == "zb-h1" else stage.backward
        result: Result = await self._compute(action, run, number, gradients, skips)
        for name, array in result.skips.items():
            self._send(plan.pops[name], number, f"G:{name}", array)
        if index > 0:
            self._send(index - 1, number, "B", result.outputs)

    async def _compute(self, action: Action, function: Any, *args: Any) -> Any:
        return await self.span(str(action.kind), action.stage, action.microbatch, function, *args)

    async def _take(self, action: Action, kind: str) -> Any:
        return await self._mailbox.take(Key(self._order.run, kind, action.stage, action.microbatch))

    def _send(self, stage: int, microbatch: int, kind: str, tree: Tree) -> None:
        key = Key(self._order.run, kind, stage, microbatch)
        sent = self._post.send(self._plan.service_of(stage, microbatch), key, tree)
        if sent is not None:
            self._sent.append(asyncio.ensure_future(sent))

    def _now(self, doing: str) -> None:
        self.doing, self.since = doing, time.monotonic()


def _timed(function: Any, *args: Any) -> tuple[float, float, Any]:
    began = time.perf_counter()
    result = function(*args)
    return began, time.perf_counter(), result


_NAMES = {Kind.FORWARD: "the forward", Kind.BACKWARD: "the backward", Kind.WEIGHT: "the weight gradient"}


def _words(action: Action) -> str:
    return f"{_NAMES[action.kind]} of stage {action.stage}, micro-batch {action.microbatch}"
