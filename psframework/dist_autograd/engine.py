"""One process's part of one backward: runs the local engine as far as it may go with what has come. No I/O.

Nodes run in descending order over all of the process, as in a local backward, so gradients are added in an
order that does not depend on when messages come. A message from here that takes part stands in that order
too: until its gradient has come, nothing older runs. That can't block for ever: whatever the gradient depends
on was made after the message left, so it is newer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from heapq import heapify, heappush
from threading import get_ident
from typing import TYPE_CHECKING, Any

from psframework.autograd.engine import Key, Sums, finished, propagate
from psframework.autograd.node import Node, Parts
from psframework.backend import Array
from psframework.dist_autograd.pairs import Received, Sent
from psframework.errors import ContextClosed, WireError

if TYPE_CHECKING:
    from psframework.dist_autograd.context import Context

Gradients = tuple[Array | None, ...]
Leave = Callable[[Received, Gradients], None]


class LocalPart:
    """The part of a backward that runs here.

    Args:
        context: whose backward it is.
        reached: messages from here that gradients will come for.
        asked: messages to here that gradients go back for, with their tensors that take part.
        retain: keep the graph for another backward.

    Attributes:
        thread: that it runs in at the moment; 0 while it does not.
        done: whether all of it has run.
        unused: messages to here that no gradient reached at all.
    """

    def __init__(
        self,
        context: Context,
        reached: Iterable[Sent],
        asked: Mapping[Received, Iterable[int]],
        *,
        retain: bool,
    ) -> None:
        self._context = context
        self._retain = retain
        self._gradients: dict[Key, Any] = {}
        self._heap: list[tuple[int, Node]] = []
        self._sums = Sums()
        self._waiting = {sent.node.order: sent for sent in reached}
        self._due = {message: _Due(message, tensors) for message, tensors in asked.items()}
        self._leave: Leave = _nowhere
        self._closed = self._began = False
        self.thread = 0
        self.done = False
        self.unused: list[Received] = []
        for message in self._due:
            message.runner = self

    @property
    def waits(self) -> list[Sent]:
        """Messages from here whose gradients have not come, oldest first."""
        return [self._waiting[order] for order in sorted(self._waiting)]

    @property
    def never_used(self) -> list[Received]:
        """Messages to here that no gradient has reached: all, if this part never ran."""
        return self.unused if self._began else list(self._due)

    def start(self, gradients: dict[Key, Any], heap: list[tuple[int, Node]]) -> None:
        """Begins at roots of this process, with what `autograd.engine.start` made of them."""
        self._gradients.update(gradients)
        self._heap += heap
        heapify(self._heap)

    def give(self, sent: Sent, gradients: Gradients) -> None:
        """The gradients of a message from here have come. WireError if they are not expected."""
        if self._waiting.get(sent.node.order) is not sent:
            raise WireError(f"gradients of {sent} came twice, or are not part of this backward")
        sent.check(gradients)
        del self._waiting[sent.node.order]
        if any(gradient is not None for gradient in gradients):
            self._gradients[sent.node] = Parts(gradients)
            heappush(self._heap, (-sent.node.order, sent.node))

    def run(self, leave: Leave) -> None:
        """Runs all that may run now; `leave` takes each message's gradients as soon as they are complete.

        Raises:
            Exception: what a rule or a hook raises; AutogradError as a local backward does.
            ContextClosed: it was closed meanwhile, or before.
        """
        self._leave, self.thread, self._began = leave, get_ident(), True
        try:
            self._check_open()
            floor = max(self._waiting, default=0)
            propagate(self._gradients, self._heap, self._retain, floor=floor, sums=self._sums)
            self._check_open()
            for due in [due for due in self._due.values() if due.last > floor]:
                self._go(due)  # no gradient reached what is missing
            if not floor and not self.done:
                self.done = True
                self._context.add(finished(self._gradients, {}, self._sums))
                self._gradients.clear()
        finally:
            self._leave, self.thread = _nowhere, 0
            if self._closed:
                self._clear()

    def arrived(self, message: Received, index: int, gradient: Array) -> None:
        """The gradient of a tensor that came with a message is complete."""
        self._check_open()
        due, dtype = self._due[message], message.dtypes[index]
        due.gradients[index] = gradient if gradient.dtype == dtype else gradient.astype(dtype)  # a hook's
        due.left -= 1
        if not due.left:
            self._go(due)

    def close(self) -> None:
        """Nothing will run any more, and what was kept for it is free; from any thread.

        While it runs, it goes on to the next message, or to the end of what may run now.
        """
        self._closed = True
        if not self.thread:
            self._clear()

    def _check_open(self) -> None:
        if self._closed:
            raise ContextClosed(f"a backward of {self._context} was given up")

    def _clear(self) -> None:
        for message in self._due:
            message.runner = None
        self._due.clear()
        self._waiting.clear()
        self._gradients.clear()
        self._heap.clear()

    def _go(self, due: _Due) -> None:
        message = due.message
        del self._due[message]
        message.runner = None
        message.spent = not self._retain
        if due.is_empty:
            self.unused.append(message)
        self._leave(message, tuple(due.gradients))


class _Due:
    """Gradients that go back for one message."""

    __slots__ = ("gradients", "last", "left", "message")

    def __init__(self, message: Received, tensors: Iterable[int]) -> None:
        wanted = set(tensors)
        self.message = message
        self.left = len(wanted)
        self.last = min(message.orders[index] for index in wanted)
        self.gradients: list[Array | None] = [None] * len(message.orders)

    @property
    def is_empty(self) -> bool:
        return all(gradient is None for gradient in self.gradients)


def _nowhere(message: Received, gradients: Gradients) -> None:
    raise AssertionError("gradients leave only while the part runs")
