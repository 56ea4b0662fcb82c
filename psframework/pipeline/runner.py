"""One run through the stages of one rank: each action waits for data, computes, and sends."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from psframework.errors import ArgumentError, ContextClosed
from psframework.pipeline.clocks import kernel
from psframework.pipeline.mailbox import Mailbox
from psframework.pipeline.plan import Key, Order, PipePlan, Report, StagePlan
from psframework.pipeline.post import Post
from psframework.pipeline.schedule import Action, Kind
from psframework.pipeline.stage import LocalStage, Result, Task
from psframework.pipeline.trees import Tree
from psframework.rpc.compute import compute

_Work: TypeAlias = tuple[Callable[..., Any], tuple[Any, ...]]
"""What an action calls in the compute thread, and with what."""


@dataclass(frozen=True, slots=True)
class _Job:
    """An action that has been given to the compute thread."""

    action: Action
    result: asyncio.Future[tuple[float, float, Any]]


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
            await self._play(actions)
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

    async def _play(self, actions: Sequence[Action]) -> None:
        """Actions whose data are there wait in the compute thread, so that it goes from one to the next.

        What one gave is sent while the next computes. One at most waits there, so that what is to be sent
        is not held up by work that nobody needs yet.
        """
        running: _Job | None = None
        data: asyncio.Future[_Work] | None = None
        following: _Job | None = None
        try:
            for action in actions:
                data = asyncio.ensure_future(self._data(action))
                if running is not None:
                    await asyncio.wait((data, running.result), return_when=asyncio.FIRST_COMPLETED)
                    if not data.done():
                        await self._deliver(running)
                        running = None
                if running is None:
                    self.now(f"waiting for the data of {_words(action)}")
                following = self._start(action, await data)
                if running is not None:
                    await self._deliver(running)
                self.now(f"computing {action.kind} of stage {action.stage}")
                running = following
            if running is not None:
                await self._deliver(running)
        finally:
            for left in (data, *(job.result for job in (running, following) if job is not None)):
                if left is not None and not left.cancel() and not left.cancelled():
                    left.exception()  # somebody has been told of another error
            data = running = following = left = None  # an error that they hold refers to this frame

    async def _data(self, action: Action) -> _Work:
        """Waits for what an action needs."""
        stage = self._stages[action.stage]
        if action.kind is Kind.FORWARD:
            return await self._forward(action, stage)
        if action.kind is Kind.BACKWARD:
            return await self._backward(action, stage)
        return stage.backward_weight, (action.microbatch,)

    async def _forward(self, action: Action, stage: LocalStage) -> _Work:
        index, number, order = action.stage, action.microbatch, self.order
        inputs = await self._take(action, "F")
        wanted = order.targets and index == self.plan.stages - 1
        targets = await self._take(action, "T") if wanted else None
        skips = {name: await self._take(action, f"S:{name}") for name in self._plans[index].pops}
        weight = order.weights[number] if order.weights else 1.0
        task = Task(order.step, number, inputs, targets, skips, weight, order.earlier, order.targets)
        return stage.forward if order.train else stage.predict, (task,)

    async def _backward(self, action: Action, stage: LocalStage) -> _Work:
        index, number = action.stage, action.microbatch
        gradients = None if index == self.plan.stages - 1 else await self._take(action, "B")
        skips = {name: await self._take(action, f"G:{name}") for name in self._plans[index].stashes}
        run = stage.backward_input if self.plan.schedule == "zb-h1" else stage.backward
        return run, (number, gradients, skips)

    def _start(self, action: Action, work: _Work) -> _Job:
        """Has an action computed after those that were started before."""
        return _Job(action, asyncio.ensure_future(compute(_timed, work[0], *work[1])))

    async def _deliver(self, job: _Job) -> None:
        """Waits until an action has ended, notes when it ran, and sends what it gave."""
        action = job.action
        try:
            began, ended, result = await job.result
        except Exception as error:
            error.add_note(f"in {_words(action)}")
            raise
        finally:
            del job  # as in `_play`
        self._spans.append((str(action.kind), action.stage, action.microbatch, began, ended))
        if action.kind is Kind.FORWARD:
            self._forwarded(action.stage, action.microbatch, result)
        elif action.kind is Kind.BACKWARD:
            self._backwarded(action.stage, action.microbatch, result)

    def _forwarded(self, index: int, number: int, result: Result) -> None:
        for name, array in result.skips.items():
            self._send(_target(self._plans[index], name), number, f"S:{name}", array)
        if result.loss is not None:
            self._losses[number] = result.loss
        if index < self.plan.stages - 1:
            self._send(index + 1, number, "F", result.outputs)
        elif not self.order.targets:  # else the loss is all that is wanted
            self._outputs[number] = result.outputs

    def _backwarded(self, index: int, number: int, result: Result) -> None:
        for name, array in result.skips.items():
            self._send(self._plans[index].pops[name], number, f"G:{name}", array)
        if index > 0:
            self._send(index - 1, number, "B", result.outputs)

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
