"""Shared memory of one session: segments of either side, and the arenas that payloads pass through."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from psframework.errors import (
    ConfigurationError,
    ContextClosed,
    PeerLost,
    PsfError,
    ResourceExhausted,
    WireError,
)
from psframework.rpc.session import frames
from psframework.rpc.session.arena import Arena, Region, layout
from psframework.rpc.session.devices import DeviceSegments
from psframework.rpc.session.payload import Outgoing
from psframework.wire.handover import PeerLeft, new_key, offer_segment, offer_socket
from psframework.wire.memory import Buffer, copy_into
from psframework.wire.shm import Segment
from psframework.wire.threads import in_thread

log = logging.getLogger("psframework.rpc")

PROOF: Final = 0
"""Id of the one-page segment that proves both ends to be on one host."""

MAX_SEGMENTS: Final = 256
SMALLEST: Final = 16 << 20
MOST_SPARE: Final = 256 << 20
HANDOVER_SECONDS: Final = 5.0
COPY_IN_THREAD: Final = 1 << 20  # a copy of 1 MiB takes the loop 0.1 ms


class Segments:
    """The shared segments of one session, of both sides.

    Args:
        budget: bytes of shared memory that outgoing payloads may take; 0 keeps them out of it.
        device_budget: the same for memory of devices.

    Attributes:
        devices: the session's memory on devices.
        key: the secret under which the other side hands segments to us.
        proved: whether a descriptor has passed, so both ends are on one host.
    """

    def __init__(self, budget: int, device_budget: int = 0) -> None:
        self.devices = DeviceSegments(device_budget)
        self.key = new_key()
        self.proved = False
        self._budget = budget
        self._path = ""
        self._their_key = b""
        self._last = PROOF
        self._received: dict[int, Segment] = {}
        self._arenas: list[Arena[Segment]] = []
        self._growing = asyncio.Lock()
        self._closed = False

    def set_other(self, path: str, key: bytes) -> None:
        """Where and with which secret the other side takes segments; from the handshake."""
        self._path, self._their_key = path, key

    # Segments as such

    def receive(self, number: int, segment: Segment) -> None:
        """The other side handed a segment over; WireError refuses it."""
        self.proved = True
        if number == PROOF:
            segment.close()
            return
        if number in self._received or len(self._received) >= MAX_SEGMENTS:
            raise WireError(f"segment {number} was shared before, or {MAX_SEGMENTS} are shared already")
        self._received[number] = segment

    def get(self, number: int) -> Segment:
        """A segment of the other side; WireError if there is none of that id."""
        segment = self._received.get(number)
        if segment is None:
            raise WireError(f"no segment {number} was shared in this session")
        return segment

    def drop(self, number: int) -> None:
        """The other side needs a segment no more; its memory goes with the last view of it."""
        segment = self._received.pop(number, None)
        if segment is not None:
            segment.close()

    async def share(self, segment: Segment) -> int:
        """Hands a segment to the other side and returns its id.

        Raises:
            ConfigurationError: the other side takes none: another host, or a lane that was not agreed on.
            PeerLost, PermissionDenied, ResourceExhausted, WireError, DeadlineExceeded: it refused this one.
        """
        self._last += 1
        number = self._last
        await self._offer(number, segment)
        return number

    async def prove(self) -> bool:
        """Finds out whether the other side is on this host, by passing a small segment."""
        if not self._path:
            return False
        try:
            with Segment.create(4096) as segment:
                await self._offer(PROOF, segment, seconds=1.0)
        except PsfError as error:
            log.debug("no shared memory with the peer: %s", error)
            return False
        self.proved = True
        return True

    def close(self) -> None:
        """The session has ended. Its memory is abandoned: the other side may still write to it."""
        self._closed = True
        for segment in [*self._received.values(), *(arena.segment for arena in self._arenas)]:
            segment.close()
        self._received.clear()
        self._arenas.clear()
        self.devices.close()

    async def _offer(self, number: int, segment: Segment, seconds: float = HANDOVER_SECONDS) -> None:
        if not self._path:
            raise ConfigurationError("the peer takes no shared memory: another host, or not allowed")
        await offer_segment(self._path, self._their_key, number, segment, seconds)

    async def offer_socket(self, number: int, sock: socket.socket) -> None:
        """Hands one end of a Unix socket to the other side, for connection `number` of the session.

        Raises:
            PeerLost, PermissionDenied, WireError, DeadlineExceeded: it was not taken.
        """
        await offer_socket(self._path, self._their_key, number, sock, HANDOVER_SECONDS)

    # Payloads

    async def place(self, parts: Sequence[Buffer], sizes: Sequence[int]) -> Outgoing | None:
        """Copies a payload into shared memory; None if it does not fit or the other side refuses."""
        offsets, total = layout(sizes)
        region = self._take(total) or await self._grow(total)
        if region is None:
            return None
        view = region.arena.segment.view(region.begin, total)
        try:
            if total < COPY_IN_THREAD:
                _copy(view, offsets, parts)
            else:
                copying = in_thread(_copy, view, offsets, parts)
                await asyncio.shield(copying)
        except asyncio.CancelledError:
            # The copy still runs in its thread: the range is free once that has ended.
            copying.add_done_callback(lambda _: region.free())
            raise
        except BaseException:
            region.free()
            raise
        places = [region.begin + offset for offset in offsets]
        return Outgoing(frames.SHM, sizes, segment=region.arena.number, offsets=places, release=region.free)

    def place_now(self, parts: Sequence[Buffer], sizes: Sequence[int]) -> Outgoing | None:
        """As `place`, without waiting: None where memory must be shared first (`prepare` does it)."""
        offsets, total = layout(sizes)
        region = self._take(total)
        if region is None:
            return None
        _copy(region.arena.segment.view(region.begin, total), offsets, parts)
        places = [region.begin + offset for offset in offsets]
        return Outgoing(frames.SHM, sizes, segment=region.arena.number, offsets=places, release=region.free)

    async def prepare(self, nbytes: int) -> None:
        """Shares memory, if the budget allows, so that `place_now` finds room for `nbytes` the next time."""
        region = self._take(nbytes) or await self._grow(nbytes)
        if region is not None:
            region.free()

    def views(self, number: int, offsets: Sequence[int], sizes: Sequence[int]) -> list[memoryview]:
        """The parts of a payload that the other side placed; WireError where they leave the segment."""
        segment = self.get(number)
        return [segment.view(offset, size).toreadonly() for offset, size in zip(offsets, sizes)]

    def _take(self, nbytes: int) -> Region[Segment] | None:
        for arena in self._arenas:
            region = arena.take(nbytes)
            if region is not None:
                return region
        return None

    async def _grow(self, nbytes: int) -> Region[Segment] | None:
        async with self._growing:
            region = self._take(nbytes)
            self._drop_idle(nbytes)
            room = self._budget - sum(arena.segment.nbytes for arena in self._arenas)
            if region is not None or nbytes > room or self._closed or not self._path:
                return region
            size = min(room, max(SMALLEST, nbytes + min(nbytes, MOST_SPARE)))
            try:
                segment = await in_thread(_make, size)
                number = await self.share(segment)
            except PsfError as error:
                log.log(_level(error), "payloads take the striped lane: %s", error)
                self._budget = 0
                return None
            arena = Arena(segment, number)
            self._arenas.append(arena)
            return arena.take(nbytes)

    def _drop_idle(self, nbytes: int) -> None:
        """Frees arenas too small for what is sent now."""
        # The other side keeps its mapping until the session ends, so this must stay rare: sizes double.
        for arena in [each for each in self._arenas if each.is_idle and each.segment.nbytes < nbytes]:
            self._arenas.remove(arena)
            arena.segment.close()


def lend(views: Sequence[memoryview], on_released: Callable[[], None]) -> list[memoryview]:
    """Wraps views so that `on_released` runs once, when the last of them has died (in whichever thread)."""
    left = sum(1 for view in views if len(view))
    if not left:
        on_released()

    def one_less() -> None:
        nonlocal left
        left -= 1
        if not left:
            on_released()

    lent = []
    for view in views:
        if not len(view):
            lent.append(view)
            continue
        handle = np.frombuffer(view, np.uint8)
        weakref.finalize(handle, one_less).atexit = False
        lent.append(memoryview(handle.data))
    return lent


def on_loop(function: Callable[[int], None], call: int) -> Callable[[], None]:
    """`function(call)`, in a later turn of the running loop, from whichever thread the result is called."""
    loop, home = asyncio.get_running_loop(), threading.get_ident()

    def schedule() -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed, and the session with it
            if threading.get_ident() == home:
                loop.call_soon(function, call)
            else:
                loop.call_soon_threadsafe(function, call)

    return schedule


def _copy(view: memoryview, offsets: Sequence[int], parts: Sequence[Buffer]) -> None:
    for offset, part in zip(offsets, parts):
        copy_into(view[offset : offset + len(part)], part)


def _make(nbytes: int) -> Segment:
    segment = Segment.create(nbytes)
    segment.touch()
    return segment


def _level(error: PsfError) -> int:
    """How loud to be about memory that the peer did not take: not at all if it has just left, or died."""
    if isinstance(error, ContextClosed | PeerLeft):
        return logging.DEBUG
    return logging.INFO if isinstance(error, ResourceExhausted | PeerLost) else logging.WARNING
