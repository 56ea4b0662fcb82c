"""Cancels a coroutine at any one of its awaits."""

import asyncio
import types
from collections.abc import Callable, Coroutine, Generator
from typing import Any

SECONDS = 20.0


@types.coroutine
def _until(coroutine: Coroutine[Any, Any, Any], stop: int, count: list[int]) -> Generator[Any, Any, Any]:
    """Runs a coroutine, and cancels its task while it is suspended for the time number `stop`."""
    error: BaseException | None = None
    while True:
        try:
            waits_for = coroutine.send(None) if error is None else coroutine.throw(error)
        except StopIteration as end:
            return end.value
        count[0] += 1
        if count[0] == stop:
            task = asyncio.current_task()
            assert task is not None
            asyncio.get_running_loop().call_soon(task.cancel)
        try:
            error = None
            yield waits_for
        except BaseException as raised:
            error = raised


async def cancelled_at(number: int, call: Callable[[], Coroutine[Any, Any, Any]]) -> bool:
    """Cancels a call at its await number `number`; False if it has fewer, and so came to its end."""
    count = [0]

    async def run() -> None:
        await _until(call(), number, count)

    async with asyncio.timeout(SECONDS):
        await asyncio.gather(asyncio.create_task(run()), return_exceptions=True)
    return count[0] >= number
