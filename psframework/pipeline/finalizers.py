"""What is closed when nobody refers any more to what it belongs to, since its driver is gone."""

from __future__ import annotations

import asyncio
import weakref
from typing import Any, Final, Protocol

from psframework.rpc.functions.context import nobodys


class Closes(Protocol):
    """What can be closed, more than once."""

    async def close(self) -> None:
        """Frees what it holds."""
        ...


_closing: Final[set[asyncio.Task[None]]] = set()


def closed_with(owner: object, thing: Closes) -> weakref.finalize[Any, Any]:
    """Has something closed on this loop when its owner goes, in whichever thread that is.

    Args:
        owner: that is not referred to by the thing.
        thing: whose `close` is called.

    Returns:
        What can be detached, if the thing has been closed.
    """
    finalizer = weakref.finalize(owner, _close_soon, asyncio.get_running_loop(), thing)
    finalizer.atexit = False
    return finalizer


def _close_soon(loop: asyncio.AbstractEventLoop, thing: Closes) -> None:
    def close() -> None:
        task = loop.create_task(thing.close(), context=nobodys())
        _closing.add(task)
        task.add_done_callback(_closing.discard)

    if not loop.is_closed():
        loop.call_soon_threadsafe(close)
