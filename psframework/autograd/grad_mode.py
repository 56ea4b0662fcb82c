"""Whether operations record a graph: a context variable, so concurrent tasks do not disturb each other."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar, Token
from functools import wraps
from types import TracebackType
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

_enabled: ContextVar[bool] = ContextVar("psframework_grad_enabled", default=True)

is_grad_enabled: Callable[[], bool] = _enabled.get


class _GradMode:
    """Sets the mode inside a `with` block, or while a decorated function runs."""

    enabled: bool

    def __init__(self) -> None:
        self._tokens: list[Token[bool]] = []

    def __enter__(self) -> None:
        self._tokens.append(_enabled.set(self.enabled))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _enabled.reset(self._tokens.pop())

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        @wraps(function)
        def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
            # A block of its own for each call: calls may be nested, or run in several tasks.
            with type(self)():
                return function(*args, **kwargs)

        return wrapper


class no_grad(_GradMode):
    """Record no graph: `with no_grad(): ...`, or `@no_grad()` on a function (not on a coroutine)."""

    enabled = False


class enable_grad(_GradMode):
    """Record the graph again inside a `no_grad` block."""

    enabled = True
