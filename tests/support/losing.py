"""A group that loses a member, and who complains of errors that nobody looked at."""

import asyncio
import gc
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from psframework.collective.ops import ReduceOp
from psframework.errors import PeerLost


class Losing:
    """Rank 0 of two, of which the other is lost.

    Args:
        well: how many operations end well before.
    """

    rank, size = 0, 2

    def __init__(self, well: int) -> None:
        self._well = well

    def all_gather(self, array: Any) -> Awaitable[Any]:
        return self._answer(np.stack([array, array]))

    def all_reduce(self, array: Any, op: ReduceOp = ReduceOp.SUM) -> Awaitable[Any]:
        return self._answer(array)

    def _answer(self, result: Any) -> Awaitable[Any]:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._well -= 1
        if self._well >= 0:
            future.set_result(result)
        else:
            future.set_exception(PeerLost("rank 1 is gone"))
        return future


@contextmanager
def complaints() -> Iterator[list[Any]]:
    """What the loop says of errors that were dropped in the block."""
    heard: list[Any] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda loop, context: heard.append(context))
    try:
        yield heard
        gc.collect()
    finally:
        loop.set_exception_handler(None)
