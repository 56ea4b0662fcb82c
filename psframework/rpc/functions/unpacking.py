"""Off the event loop: what is read from messages with modules, whose constructors may take long.

What rides in such a message (RRefs) still is taken over on the loop, while the thread waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from functools import partial
from typing import Any, Final, TypeVar

from psframework.errors import PsfError
from psframework.proto.v1.remote_pb2 import Value
from psframework.rpc.compute import compute
from psframework.rpc.values import arguments
from psframework.rpc.values.decoder import Home
from psframework.rpc.values.journey import Journey

LOOK_SECONDS: Final = 0.5
"""The thread looks so often whether the loop that it waits for still lives."""

T = TypeVar("T")


class Unread:
    """What a reply brings, still to be read in a thread.

    Args:
        read: reads it; it gets what calls functions on the loop.
    """

    __slots__ = ("_read",)

    def __init__(self, read: Callable[[Home], Any]) -> None:
        self._read = read

    async def value(self) -> Any:
        """What was read; raises as `arguments.decode`."""
        return await in_thread(self._read)


def value_of(message: Value, parts: Sequence[memoryview], journey: Journey) -> Any:
    """The value of a reply, or `Unread` if there may be modules in it; raises as `arguments.decode`."""
    if arguments.may_build(message):
        return Unread(lambda home: arguments.decode(message, parts, journey, home=home))
    return arguments.decode(message, parts, journey)


async def in_thread(read: Callable[[Home], T]) -> T:
    """Calls `read` in the compute thread; what it is given calls functions on this loop."""
    return await compute(read, partial(_call_on, asyncio.get_running_loop()))


def _call_on(loop: asyncio.AbstractEventLoop, function: Callable[[], Any]) -> Any:
    """Calls a function on a loop, from another thread that waits."""
    outcome: Future[Any] = Future()

    def run() -> None:
        try:
            outcome.set_result(function())
        except BaseException as error:
            outcome.set_exception(error)

    loop.call_soon_threadsafe(run)
    while not wait((outcome,), LOOK_SECONDS).done:
        if loop.is_closed():
            raise PsfError("the event loop ended while a message for it was being read")
    return outcome.result()
