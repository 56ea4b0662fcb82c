"""What `with device:` and `with stream:` set, kept for each task: it follows work into other threads."""

from __future__ import annotations

import contextvars
from collections.abc import Callable
from contextlib import ExitStack
from typing import NamedTuple, ParamSpec, TypeAlias, TypeVar

P = ParamSpec("P")
R = TypeVar("R")
Undo: TypeAlias = Callable[[], object]
Enter: TypeAlias = Callable[[], Undo]


class Scope(NamedTuple):
    """A device or stream that a task entered."""

    kind: str
    number: int
    enter: Enter
    undo: Undo


# A contextvar: CuPy's own current device belongs to a thread, and tasks share one.
_scopes: contextvars.ContextVar[tuple[Scope, ...]] = contextvars.ContextVar("psf_devices", default=())


def push(kind: str, index: int, enter: Enter) -> None:
    """Enter a device, here and wherever `follow` runs."""
    _scopes.set((*_scopes.get(), Scope(kind, index, enter, enter())))


def pop() -> None:
    """Leave the innermost."""
    *outer, innermost = _scopes.get()
    _scopes.set(tuple(outer))
    innermost.undo()


def innermost() -> Scope | None:
    """What was entered last."""
    scopes = _scopes.get()
    return scopes[-1] if scopes else None


def follow(fn: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Call `fn` with the devices and streams of its context, which another thread may have entered."""
    scopes = _scopes.get()
    if not scopes:
        return fn(*args, **kwargs)
    with ExitStack() as stack:
        for scope in scopes:
            stack.callback(scope.enter())
        return fn(*args, **kwargs)
