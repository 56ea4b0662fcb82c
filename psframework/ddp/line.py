"""The line in which the backwards of a group wait, so that ranks do them in the order of the calls."""

from __future__ import annotations

import asyncio
from typing import Self
from weakref import WeakKeyDictionary

from psframework.collective.group import ProcessGroup


class Place:
    """A place in a line. An async context manager: the block begins when those before it have ended.

    Args:
        before: done when the place before this one is free; None if that is so.
    """

    def __init__(self, before: asyncio.Future[None] | None) -> None:
        self._before = before
        self.free: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def __aenter__(self) -> Self:
        before, self._before = self._before, None
        if before is not None:
            try:
                await asyncio.wait([before])
            except BaseException:
                self.leave()
                raise
        return self

    async def __aexit__(self, *_: object) -> None:
        self.leave()

    def leave(self) -> None:
        """The next one may begin."""
        if not self.free.done():
            self.free.set_result(None)


class Line:
    """Who comes is served in that order."""

    def __init__(self) -> None:
        self._last: asyncio.Future[None] | None = None

    @property
    def empty(self) -> bool:
        """Whether who comes now does not wait."""
        return self._last is None or self._last.done()

    def join(self) -> Place:
        """The last place."""
        place = Place(None if self.empty else self._last)
        self._last = place.free
        return place


_lines: WeakKeyDictionary[ProcessGroup, Line] = WeakKeyDictionary()


def line_of(group: ProcessGroup) -> Line:
    """Where the backwards of a group's wrappers wait.

    Each is in its place until all its collectives have begun, since the group does those in the order in
    which they begin: while it computes, and with a hook or sparse gradients until its end.
    """
    return _lines.setdefault(group, Line())
