"""Replies that a peer has not taken yet: how much memory they hold, and whether more may be made."""

from __future__ import annotations

import asyncio
from typing import Final

from psframework.errors import ResourceExhausted

AT_ONCE: Final = 32


class Room:
    """What replies to one peer hold while they wait to leave.

    A peer that does not read must not fill this process with its results. So functions for it begin only
    while there is room; and a result that takes far too much is dropped, and its caller told. What waits
    here is taken by the peer's event loop, which waits for nothing of ours: so no circle of calls can close.

    Args:
        peer: name of the peer, for the message.
        enough: bytes beyond which nothing more is begun.
        most: bytes beyond which a result is refused.

    Attributes:
        held: bytes of the moment. May be read in any thread.
        turns: for functions that were put off; so many go on at once when there is room again.
    """

    __slots__ = ("_cleared", "_enough", "_most", "_peer", "held", "turns")

    def __init__(self, peer: str, enough: int, most: int) -> None:
        self.held = 0
        self.turns = asyncio.Semaphore(AT_ONCE)
        self._peer = peer
        self._enough = enough
        self._most = most
        self._cleared = asyncio.Event()
        self._cleared.set()

    @property
    def is_full(self) -> bool:
        """Whether nothing more should be begun. May be asked in any thread."""
        return self.held > self._enough

    def hold(self, nbytes: int) -> None:
        """A result takes so many bytes; ResourceExhausted if it may not."""
        if self.held and self.held + nbytes > self._most:
            raise ResourceExhausted(
                f"the result is dropped: {self.held} bytes of results wait for {self._peer} to take them, "
                f"and {self._most} may: ask for fewer at once",
                retry_after=1.0,
            )
        self.held += nbytes
        if self.is_full:
            self._cleared.clear()

    def let_go(self, nbytes: int) -> None:
        """They have left, or never will."""
        self.held -= nbytes
        if not self.is_full:
            self._cleared.set()

    async def cleared(self) -> None:
        """Waits until there is room."""
        while self.is_full:
            await self._cleared.wait()
