"""The operations of one rank of a group, one after the other in call order, whichever thread calls."""

from __future__ import annotations

import asyncio
import copy
import logging
import threading
from collections import deque
from collections.abc import Callable
from threading import get_ident
from typing import Final

from psframework.collective.descriptor import Descriptor, Operation
from psframework.collective.recorder import Record, Recorder
from psframework.collective.work import Transport, Work
from psframework.errors import CollectiveMismatch, DeadlineExceeded
from psframework.wire.threads import in_thread

log = logging.getLogger(__name__)

Finish = Callable[[Work, BaseException | None], None]
Explain = Callable[[DeadlineExceeded, Callable[[BaseException], None]], None]

_REFUSE: Final = Operation.REFUSE


class Call:
    """One operation on its way.

    Args:
        work: its `descriptor` has no sequence number yet; its `done` is the queue's `ended`.
        finish: called once with the work and its error, or None; the next operation starts after it. From any
            thread; what it queues in `front` runs next.
        load: fills the work's arrays just before it starts.
        heavy: `load` and `finish` copy so much that they should not run on the loop.
        transport: what runs it, and aborts the group's own with it; the group's own if None.
    """

    __slots__ = ("finish", "heavy", "load", "nested", "over", "record", "starter", "transport", "work")

    def __init__(
        self,
        work: Work,
        finish: Finish,
        load: Callable[[Work], None] | None = None,
        heavy: bool = False,
        transport: Transport | None = None,
    ) -> None:
        self.work = work
        self.finish = finish
        self.load = load
        self.heavy = heavy
        self.transport = transport
        self.record: Record | None = None
        self.starter = 0  # the thread that is inside `start` of the transport
        self.nested = False  # it ended in there
        self.over = False


def again(error: BaseException) -> BaseException:
    """The error to be raised once more: without the traceback of the last time."""
    try:
        fresh = copy.copy(error)
    except Exception:  # a class whose constructor wants more than its `args`
        return error
    fresh.__cause__ = error.__cause__
    return fresh


class Queue:
    """Gives sequence numbers, starts one operation when the last has ended, and ends all when the group does.

    Args:
        transport: runs them.
        recorder: is told.
        loop: heavy copies are kept off it.
        failed: called once, from any thread, when an operation's error ended the group; with whether the
            other ranks know of it, from the one that left.
        explain: called on the loop with a DeadlineExceeded of an operation; hands on a better one.
    """

    def __init__(
        self,
        transport: Transport,
        recorder: Recorder,
        loop: asyncio.AbstractEventLoop,
        failed: Callable[[BaseException, bool], None],
        explain: Explain | None = None,
    ) -> None:
        self._transport = transport
        self._recorder = recorder
        self._loop = loop
        self._loop_thread = get_ident()
        self._failed = failed
        self._explain = explain
        self._lock = threading.Lock()
        self._waiting: deque[Call] = deque()
        self._running: Call | None = None
        self._longest = 0.0  # the last deadline of those that run and wait
        self._left: tuple[int, BaseException] | None = None  # a member went after that operation
        self.error: BaseException | None = None
        self.sequence = 0

    def put(self, call: Call, *, front: bool = False) -> None:
        """Starts it, or lets it wait for its turn. Errors go to its `finish`."""
        ends = call.work.deadline.at
        with self._lock:
            error = self.error
            if error is None:
                call.record = self._recorder.called(call.work.descriptor)
                running = self._running
                longest = self._longest
                if running is not None:
                    (self._waiting.appendleft if front else self._waiting.append)(call)
                    self._longest = max(longest, ends)
                else:
                    self._running = call
                    self._longest = ends
        if error is not None:
            _finish(call, again(error))
        elif running is None:
            self._drive(call)
        elif ends < longest and not front:
            self._loop.call_soon_threadsafe(self._watch, call)

    def ended(self, work: Work, error: BaseException | None) -> None:
        """`done` of every work: from the transport, in any thread."""
        call = self._running
        if call is None or call.work is not work or call.over:
            return  # it ended already
        if isinstance(error, DeadlineExceeded) and self._explain is not None and self.error is None:
            explain = self._explain
            self._on_loop(lambda: explain(error, lambda better: self._conclude(call, better)))
        elif call.heavy and get_ident() == self._loop_thread:
            in_thread(self._conclude, call, error)
        else:
            self._conclude(call, error)

    def abort(self, error: BaseException, after: int | None = None) -> bool:
        """The group ends: everything that runs, waits or comes gets `error`. Any thread may call it.

        Args:
            error: the reason.
            after: operations up to this number may still end well (whoever caused the error took its part in
                them); None: none may.

        Returns:
            Whether it is over now, and was not before.
        """
        with self._lock:
            if self.error is not None:
                return False
            if after is not None and self.sequence <= after:
                if self._left is None or after < self._left[0]:
                    self._left = after, error
                return False
            self.error = error
            waiting, running = self._drain(), self._running
        self._transport_of(running).abort(error)
        self._drop(waiting, error)
        return True

    def close(self, error: BaseException, gone: BaseException) -> None:
        """This rank leaves: everything that did not end gets `error`, and the other ranks `gone`."""
        with self._lock:
            if self.error is None:
                self.error = error
            running = self._running
            waiting = self._drain()
        if running is not None:
            self._transport_of(running).abort(gone)
        self._drop(waiting, error)

    def _drive(self, call: Call | None) -> None:
        while call is not None:
            if call.load is not None and call.heavy and get_ident() == self._loop_thread:
                in_thread(self._drive, call)
                return
            call.starter = get_ident()
            try:
                self._start(call)
            except Exception as error:
                self.ended(call.work, error)
            call.starter = 0
            if not call.nested:
                return
            call = self._next()

    def _start(self, call: Call) -> None:
        if call.load is not None:
            call.load(call.work)
        work = call.work
        with self._lock:
            error = self.error
            if error is None:
                number = self.sequence + 1
                if self._left is not None and number > self._left[0]:
                    error = self._left[1]
                else:
                    self.sequence = number
                    work.descriptor = numbered(work.descriptor, number)
                    assert call.record is not None
                    self._recorder.started(call.record, work.descriptor)
        if error is not None:
            self.ended(work, error)
        else:
            self._transport_of(call).start(work)

    def _conclude(self, call: Call, error: BaseException | None) -> None:
        """It ended; the next one starts, here or in the loop of whoever is inside `start`."""
        ends = False
        waiting: list[Call] = []
        with self._lock:
            if call.over:
                return
            call.over = True
            if error is not None and self.error is not None:
                error = self.error
            assert call.record is not None
            self._recorder.ended(call.record, error)
            if error is not None:
                refusal = isinstance(error, CollectiveMismatch)
                if self.error is None and not (refusal and self._transport.lives_on):
                    ends, self.error = True, error
                if self.error is not None or call.work.descriptor.operation is not _REFUSE:
                    waiting = self._drain()
        if ends:
            assert error is not None
            self._transport_of(call).abort(error)
            self._failed(error, self._left is not None and error is self._left[1])
        _finish(call, error)
        if error is not None:
            self._drop(waiting, error)
        if call.starter == get_ident():
            call.nested = True
        else:
            self._drive(self._next())

    def _transport_of(self, call: Call | None) -> Transport:
        return self._transport if call is None or call.transport is None else call.transport

    def _next(self) -> Call | None:
        with self._lock:
            call = self._running = self._waiting.popleft() if self._waiting else None
        return call

    def _drain(self) -> list[Call]:
        waiting = list(self._waiting)
        self._waiting.clear()
        return waiting

    def _drop(self, waiting: list[Call], error: BaseException) -> None:
        """They fail with the one before them, and take no number: ranks stay in step."""
        for call in waiting:
            if call.record is not None:
                self._recorder.ended(call.record, error)
            _finish(call, again(error))

    def _watch(self, call: Call) -> None:
        """Its deadline is before that of the operation in front of it."""
        self._loop.call_later(call.work.deadline.remaining(), self._late, call)

    def _late(self, call: Call) -> None:
        if call not in self._waiting or self.error is not None:
            return
        front = self._running
        text = f"{call.work.descriptor} waited for its turn behind {front.work.descriptor if front else ''}"
        late = DeadlineExceeded(text)
        if self._explain is not None:
            self._explain(late, self._end)
        else:
            self._end(late)

    def _end(self, error: BaseException) -> None:
        if self.abort(error):
            self._failed(error, False)

    def _on_loop(self, function: Callable[[], None]) -> None:
        if get_ident() == self._loop_thread:
            function()
        else:
            self._loop.call_soon_threadsafe(function)


def numbered(descriptor: Descriptor, sequence: int) -> Descriptor:
    """The same with its number; `dataclasses.replace` takes three times as long."""
    return Descriptor(
        sequence, descriptor.operation, descriptor.dtype, descriptor.shape, descriptor.op, descriptor.root,
        descriptor.open, descriptor.note,
    )  # fmt: skip


def _finish(call: Call, error: BaseException | None) -> None:
    try:
        call.finish(call.work, error)
    except Exception:  # a caller's callback: the queue goes on
        log.exception("what waited for %s failed", call.work.descriptor)
