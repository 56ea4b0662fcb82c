"""Inference for many: requests that wait at the same time go through the pipe together."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final

from psframework.errors import ContextClosed, DeadlineExceeded, PeerLost
from psframework.pipeline.batching import Batch, Batcher, Ticket
from psframework.pipeline.ranks import ASK_SECONDS
from psframework.pipeline.trees import Tree
from psframework.rpc.deadline import Deadline
from psframework.rpc.functions.context import nobodys

IN_FLIGHT: Final = 2
"""Batches at once: while one is in the last stages, the next is in the first. More would join less."""
_GRACE_SECONDS = 3 * ASK_SECONDS


@dataclass(slots=True, eq=False)
class _Request:
    """Somebody who waits.

    Attributes:
        deadline: until when.
        answer: what is waited for.
        batch: that the request is in.
    """

    deadline: Deadline
    answer: asyncio.Future[Tree]
    batch: _Going | None = None


@dataclass(slots=True, eq=False)
class _Going:
    """A batch that runs: its deadline is that of its most patient request."""

    requests: Sequence[_Request]
    deadline: Deadline
    task: asyncio.Task[None] | None = None


class Serving:
    """The requests of one pipe.

    Args:
        run: (inputs, deadline) -> outputs of the model.
        blame: says who is late.
        rows: most rows of a batch of several requests.

    Attributes:
        requests: how many came.
        batches: how many runs they took.
    """

    def __init__(
        self,
        run: Callable[[Tree, Deadline], Awaitable[Tree]],
        blame: Callable[[], Awaitable[str]],
        rows: int,
    ) -> None:
        self._run, self._blame = run, blame
        self._batcher = Batcher(rows)
        self._waiting: dict[Ticket, _Request] = {}
        self._going: set[_Going] = set()
        self._closed = False
        self.requests = self.batches = 0

    async def infer(self, x: Tree, deadline: Deadline) -> Tree:
        """What the model answers to one request. Cancelling it leaves the others.

        Raises:
            DeadlineExceeded: not in time; names who is late.
            ContextClosed: the pipe is closed.
        """
        if self._closed:
            raise ContextClosed("this pipeline is closed")
        loop = asyncio.get_running_loop()
        ticket = self._batcher.add(x)
        request = self._waiting[ticket] = _Request(deadline, loop.create_future())
        self.requests += 1
        loop.call_soon(self._fill)  # when all who come at this moment are in line
        try:
            await asyncio.wait([request.answer], timeout=deadline.seconds())
            if request.batch is not None and request.batch.deadline <= deadline:
                await asyncio.wait([request.answer], timeout=_GRACE_SECONDS)  # it tells more
            if not request.answer.done():
                raise DeadlineExceeded(await self._blame())
            return request.answer.result()
        finally:
            self._leave(ticket, request)

    async def close(self) -> None:
        """Ends everything; who waits gets ContextClosed."""
        self._closed = True
        for request in self._waiting.values():
            _fail([request], ContextClosed("this pipeline is closed"))
        tasks = [going.task for going in self._going if going.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _leave(self, ticket: Ticket, request: _Request) -> None:
        """Nobody waits for this one any more; nor for its batch, if it was the last."""
        del self._waiting[ticket]
        self._batcher.discard(ticket)
        if not request.answer.cancel() and not request.answer.cancelled():
            request.answer.exception()  # seen, so that nobody logs that it was not
        going = request.batch
        if (
            going is not None
            and going.task is not None
            and all(each.answer.done() for each in going.requests)
        ):
            going.task.cancel()

    def _fill(self) -> None:
        """Starts batches while there are requests and room."""
        while not self._closed and len(self._going) < IN_FLIGHT:
            batch = self._batcher.take()
            if batch is None:
                return
            requests = [self._waiting[ticket] for ticket in batch.tickets]
            going = _Going(requests, max(each.deadline for each in requests))
            for each in requests:
                each.batch = going
            self._going.add(going)
            loop = asyncio.get_running_loop()
            going.task = loop.create_task(self._go(batch, going), name="psf-infer", context=nobodys())

    async def _go(self, batch: Batch, going: _Going) -> None:
        try:
            await self._answer(batch, going)
        finally:
            self._going.discard(going)
            self._fill()

    async def _answer(self, batch: Batch, going: _Going) -> None:
        """Runs a batch; if its requests can't be run together, one by one."""
        self.batches += 1
        waiting = [self._waiting[ticket] for ticket in batch.tickets if ticket in self._waiting]
        try:
            answers = batch.split(await self._run(batch.inputs, going.deadline))
        except (PeerLost, DeadlineExceeded, ContextClosed) as error:  # nothing that a request is to blame for
            _fail(waiting, error)
        except Exception as error:
            if len(batch.tickets) == 1:
                _fail(waiting, error)
                return
            for each in batch.apart():
                if each.tickets[0] in self._waiting:
                    await self._answer(each, going)
        else:
            for ticket, answer in answers:
                request = self._waiting.get(ticket)
                if request is not None and not request.answer.done():
                    request.answer.set_result(answer)


def _fail(requests: Sequence[_Request], error: Exception) -> None:
    for request in requests:
        if not request.answer.done():
            request.answer.set_exception(error)
