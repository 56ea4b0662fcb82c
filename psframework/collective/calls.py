"""From a user's array to a queued operation, and from its end to a future."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Callable, Coroutine
from math import prod
from threading import get_ident
from typing import Any, TypeVar

import numpy as np

from psframework import backend
from psframework.backend import Array
from psframework.collective.arrays import Lent
from psframework.collective.descriptor import Descriptor, Operation
from psframework.collective.nccl import Nccl
from psframework.collective.queue import Call, Finish, Queue, again
from psframework.collective.work import Flat, Work
from psframework.errors import ArgumentError
from psframework.rpc.deadline import Deadline
from psframework.rpc.functions.future import Future

T = TypeVar("T")


class Calls:
    """Makes operations of arrays.

    Args:
        queue: where they go.
        loop: of the futures.
        timeout: default in seconds; 0 for no limit.

    Attributes:
        nccl: carries arrays on a GPU; None: they go by way of the host.
    """

    def __init__(self, queue: Queue, loop: asyncio.AbstractEventLoop, timeout: float) -> None:
        self._queue = queue
        self._loop = loop
        self._thread = get_ident()
        self._timeout = timeout
        self.nccl: Nccl | None = None
        self._going: set[asyncio.Task[Any]] = set()
        self._refusals: set[concurrent.futures.Future[None]] = set()  # that others have yet to hear of

    def deadline(self, timeout: float | None) -> Deadline:
        """Of an operation that is called now."""
        if timeout is None:
            timeout = self._timeout
        if timeout < 0:
            raise ArgumentError(f"timeout={timeout}: seconds, or 0 for no limit")
        return Deadline.after(timeout or None)

    def exchange(self, descriptor: Descriptor, lent: Lent, result: T, timeout: float | None) -> Future[T]:
        """What is sent is overwritten by what is received."""
        work = self._work(descriptor, timeout)

        def load(work: Work) -> None:
            work.send = work.receive = lent.load()

        return self._launch(work, lent, load, lambda work: lent.written(work.receive, result))

    def give(self, descriptor: Descriptor, lent: Lent, result: T, timeout: float | None) -> Future[T]:
        """This rank sends, and receives nothing."""
        work = self._work(descriptor, timeout)

        def load(work: Work) -> None:
            work.send = lent.load()

        return self._launch(work, lent, load, lambda work: result)

    def take(self, descriptor: Descriptor, lent: Lent, result: T, timeout: float | None) -> Future[T]:
        """This rank receives into an array, and sends nothing."""
        work = self._work(descriptor, timeout)

        def load(work: Work) -> None:
            work.receive = lent.room()

        return self._launch(work, lent, load, lambda work: lent.written(work.receive, result))

    def make(
        self, descriptor: Descriptor, lent: Lent, shape: tuple[int, ...], timeout: float | None
    ) -> Future[Any]:
        """This rank sends, and receives a new array of that shape."""
        work = self._work(descriptor, timeout)

        def load(work: Work) -> None:
            work.send = lent.load()
            work.receive = lent.fresh(prod(shape))

        return self._launch(work, lent, load, lambda work: lent.result(_received(work), shape))

    def receive(
        self,
        descriptor: Descriptor,
        shape_of: Callable[[Descriptor], tuple[int, ...]],
        timeout: float | None,
        read: Callable[[Array], Any] | None = None,
    ) -> Future[Any]:
        """This rank, which sends nothing, receives an array whose shape follows from the root's descriptor.

        Args:
            descriptor: an open one.
            shape_of: the array's shape, from the root's descriptor.
            timeout: in seconds.
            read: makes the result of the array, on the loop.
        """
        work = self._work(descriptor, timeout)
        shapes: list[tuple[int, ...]] = []

        def allocate(root: Descriptor) -> Flat:
            shapes.append(shape_of(root))
            return np.empty(prod(shapes[-1]), backend.dtype_from_name(root.dtype))

        work.allocate = allocate
        future: Future[Any] = Future(_it_runs_on)
        finish = self._finish(future, lambda work: _received(work).reshape(shapes[-1]), read)
        self._queue.put(Call(work, finish))
        return future

    def bare(self, descriptor: Descriptor, timeout: float | None) -> Future[None]:
        """No data."""
        future: Future[None] = Future(_it_runs_on)
        self._queue.put(Call(self._work(descriptor, timeout), self._finish(future, lambda work: None)))
        return future

    def gather_bytes(
        self,
        packed: Flat,
        dst: int,
        place: tuple[int, int],
        timeout: float | None,
        read: Callable[[Flat], Any],
    ) -> Future[list[Any] | None]:
        """Bytes of different lengths: two operations, with nothing in between.

        Args:
            packed: this rank's.
            dst: the destination's rank.
            place: this rank, and the size of the group.
            timeout: in seconds, of both together.
            read: makes what is wanted of the bytes of one rank, behind which more may follow; on the loop.
        """
        deadline, (rank, size) = self.deadline(timeout), place
        future: Future[list[Any] | None] = Future(_it_runs_on)
        lengths, note = np.empty(size, np.int64), f"gather_object(root {dst})"
        first = self.work(Descriptor(0, Operation.ALL_GATHER, "int64", (1,), note=note), deadline)
        first.send, first.receive = np.array([packed.size], np.int64), lengths

        def load(work: Work) -> None:
            longest = int(lengths.max())
            work.send = np.zeros(longest, np.uint8)
            work.send[: packed.size] = packed
            work.receive = np.empty(size * longest, np.uint8) if dst == rank else None

        def read_all(flat: Flat | None) -> list[Any] | None:
            return None if flat is None else [read(each) for each in flat.reshape(size, -1)]

        finish = self._finish(future, lambda work: work.receive, read_all)

        def go_on(work: Work, error: BaseException | None) -> None:
            if error is not None:
                finish(work, error)
                return
            shape = (int(lengths.max()),)
            descriptor = Descriptor(0, Operation.GATHER, "uint8", shape, None, dst, note=note)
            second = self.work(descriptor, deadline)
            self._queue.put(Call(second, finish, load), front=True)

        self._queue.put(Call(first, go_on))
        return future

    def decline(self, why: str, load: Callable[[Work], None] | None = None) -> None:
        """Takes the place of an operation that this rank can't do: the other ranks hear why.

        Unless `load`, just before, raises.
        """
        told: concurrent.futures.Future[None] = concurrent.futures.Future()
        self._refusals.add(told)

        def finish(work: Work, error: BaseException | None) -> None:
            self._refusals.discard(told)
            told.set_result(None)

        self._queue.put(Call(self._work(Descriptor(0, Operation.REFUSE, note=why), None), finish, load))

    async def told(self, seconds: float) -> None:
        """Until the other ranks have heard of all that was declined, but no longer than that."""
        if refusals := [asyncio.wrap_future(each) for each in tuple(self._refusals)]:
            await asyncio.wait(refusals, timeout=seconds)

    async def to_the_end(self, work: Coroutine[Any, Any, T]) -> T:
        """Does what other ranks wait for; it goes on if the caller is cancelled."""
        task = asyncio.ensure_future(work)
        self._going.add(task)
        task.add_done_callback(self._gone)
        return await asyncio.shield(task)

    def _gone(self, task: asyncio.Task[Any]) -> None:
        self._going.discard(task)
        if not task.cancelled():
            task.exception()  # whoever asked has it, if it was not cancelled

    def work(self, descriptor: Descriptor, deadline: Deadline) -> Work:
        """One without arrays yet."""
        return Work(descriptor, None, None, deadline, self._queue.ended)

    def _work(self, descriptor: Descriptor, timeout: float | None) -> Work:
        return self.work(descriptor, self.deadline(timeout))

    def _launch(
        self, work: Work, lent: Lent, load: Callable[[Work], None], deliver: Callable[[Work], T]
    ) -> Future[T]:
        future: Future[T] = Future(_it_runs_on)
        nccl = self.nccl if self.nccl is not None and self.nccl.takes(work.descriptor, lent.array) else None
        if nccl is not None:
            lent.stay(nccl.ready)
        self._queue.put(Call(work, self._finish(future, deliver), load, lent.heavy, nccl))
        return future

    def _finish(
        self,
        future: Future[Any],
        deliver: Callable[[Work], Any],
        read: Callable[[Any], Any] | None = None,
    ) -> Finish:
        """What ends the future: `deliver` makes its result in any thread, `read` goes on on the loop."""

        def finish(work: Work, error: BaseException | None) -> None:
            result = None
            if error is None:
                try:
                    result = deliver(work)
                except Exception as failure:  # no room, or a device's error
                    error = failure
            if get_ident() == self._thread:
                _settle(future, result, error, read)
            elif not self._loop.is_closed():
                self._loop.call_soon_threadsafe(_settle, future, result, error, read)

        return finish


def _received(work: Work) -> Flat:
    assert work.receive is not None
    return work.receive


def _settle(
    future: Future[Any], result: object, error: BaseException | None, read: Callable[[Any], Any] | None
) -> None:
    if future.done():  # it was cancelled
        return
    if error is None and read is not None:
        try:
            result = read(result)
        except Exception as failure:
            error = failure
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)


def _it_runs_on() -> None:
    """Other ranks wait for an operation: cancelling its future only drops the result."""


def guard(check: Callable[[], BaseException | None] | None) -> Callable[[Work], None] | None:
    """What loads an operation without arrays of its own: if `check` gives an error, it fails instead."""
    if check is None:
        return None

    def load(work: Work) -> None:
        error = check()
        if error is not None:
            raise again(error)

    return load
