"""Calls that the client makes besides those to shards, and running several side by side."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

from google.protobuf.message import Message

from psframework.parameter_server.link import Runtime
from psframework.parameter_server.messages import keeper_method
from psframework.rpc.deadline import Deadline

R = TypeVar("R")
M = TypeVar("M", bound=Message)


async def call_keeper(
    runtime: Runtime, method: str, request: Message, reply_type: type[M], deadline: Deadline
) -> M:
    """Calls a method of the keeper of models, until the deadline; survives a new coordinator."""
    line = runtime.membership.line
    return await line.call(keeper_method(method), request, reply_type, deadline, patient=True)


async def each(calls: Iterable[Coroutine[Any, Any, R]]) -> list[R]:
    """Runs calls side by side, each to its end, then raises the first failure."""
    begun = list(calls)
    if len(begun) == 1:
        return [await begun[0]]  # a small step is mostly turns of the loop: none for a task
    results = await asyncio.gather(*begun, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return [result for result in results if not isinstance(result, BaseException)]
