"""Whether operations record a graph: a context variable, so concurrent tasks do not disturb each other."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Generator
from contextvars import ContextVar, Token
from functools import partial, wraps
from types import TracebackType
from typing import Any, ParamSpec, TypeVar, cast

from psframework.errors import ArgumentError

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
        # A block of its own for each call: calls may be nested, or run in several tasks.
        block, run = type(self), cast(Callable[..., Any], function)
        if inspect.isasyncgenfunction(function):
            raise ArgumentError(f"{block.__name__}() on an async generator: write `with` inside of it")
        if inspect.iscoroutinefunction(function):

            @wraps(function)
            async def awaited(*args: P.args, **kwargs: P.kwargs) -> Any:
                with block():
                    return await run(*args, **kwargs)

            return cast(Callable[P, R], awaited)
        if inspect.isgeneratorfunction(function):

            @wraps(function)
            def generated(*args: P.args, **kwargs: P.kwargs) -> Any:
                return _in_steps(block, run(*args, **kwargs))

            return cast(Callable[P, R], generated)

        @wraps(function)
        def called(*args: P.args, **kwargs: P.kwargs) -> R:
            with block():
                return function(*args, **kwargs)

        return called


def _in_steps(block: type[_GradMode], steps: Generator[Any, Any, Any]) -> Generator[Any, Any, Any]:
    """`steps`, each of them inside a block, but not what its user does in between."""
    resume: Callable[[], Any] = partial(next, steps)
    while True:
        try:
            with block():
                item = resume()
        except StopIteration as end:
            return end.value
        try:
            resume = partial(steps.send, (yield item))
        except GeneratorExit:
            with block():
                steps.close()
            raise
        except BaseException as error:
            resume = partial(steps.throw, error)


class no_grad(_GradMode):
    """Record no graph: `with no_grad(): ...`, or `@no_grad()` on a function, coroutine or generator."""

    enabled = False


class enable_grad(_GradMode):
    """Record the graph again inside a `no_grad` block."""

    enabled = True
