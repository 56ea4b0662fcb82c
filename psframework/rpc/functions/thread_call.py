"""A sync function on its way through the thread pool: put off, given up, or left to its end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from psframework.rpc.room import Room

PUT_OFF: Final = object()


class ThreadCall:
    """Calls a function in a thread of the pool, while the loop may stop to wait for it.

    Who takes the one entry of a list was first: the loop or the thread.

    Args:
        run: the function with its arguments.
        room: for its result; None where it needs none.
    """

    __slots__ = ("_begin", "_end", "_room", "_run", "_tell")

    def __init__(self, run: Callable[[], Any], room: Room | None = None) -> None:
        self._run: Callable[[], Any] | None = run
        self._room = room
        self._begin = [True]
        self._end = [True]
        self._tell: Callable[[], None] | None = None

    def __call__(self) -> Any:
        """In a thread: returns what the function returns, or PUT_OFF if there is no room for its result.

        It is asked as late as can be: what ran just before may have filled the room.
        """
        if self._room is not None and self._room.is_full:
            return PUT_OFF
        run, self._run = self._run, None
        if run is None or not _take(self._begin):
            return None
        try:
            return run()
        finally:
            del run  # its arguments are freed before anybody hears of the end
            if not _take(self._end) and self._tell is not None:
                self._tell()

    def give_up(self, tell: Callable[[], None]) -> bool:
        """On the loop: nobody waits any more, so it shall not begin.

        Returns:
            Whether it runs nevertheless; then `tell` is called, in its thread, when it has ended.
        """
        if _take(self._begin):
            self._run = None
            return False
        self._tell = tell
        return _take(self._end)


def _take(entry: list[bool]) -> bool:
    try:
        entry.pop()
    except IndexError:
        return False
    return True
