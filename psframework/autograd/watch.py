"""Those who are told of each node as it is recorded: `detect_anomaly`, and the first run of `recompute`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from threading import Lock
from typing import TypeAlias

from psframework.autograd.node import Node
from psframework.backend import Array

# Called with a new node and the result it stands for; None for the common node of several results.
Observer: TypeAlias = Callable[[Node, "Array | None"], None]

_observers: ContextVar[tuple[Observer, ...]] = ContextVar("psframework_observers", default=())
_lock = Lock()

# Blocks open in the process: while there is none, recording a node looks no further than this.
blocks = 0


@contextmanager
def observing(observer: Observer) -> Iterator[None]:
    """Tell `observer` of each node that this task or thread records inside the block."""
    global blocks
    with _lock:
        blocks += 1
    token = _observers.set((*_observers.get(), observer))
    try:
        yield
    finally:
        _observers.reset(token)
        with _lock:
            blocks -= 1


def tell(node: Node, data: Array | None) -> None:
    """A node was recorded."""
    for observer in _observers.get():
        observer(node, data)
