"""A payload on its way out: its lane, and what its frame says about it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from psframework.errors import ArgumentError
from psframework.rpc.session import frames
from psframework.rpc.session.frames import Frame
from psframework.rpc.session.stream import Port
from psframework.wire.device_bytes import DEVICE_BYTES, DeviceBytes, Part
from psframework.wire.lanes import INLINE_BYTES, Lane, choose
from psframework.wire.memory import Buffer, BufferPool, copy_into

if TYPE_CHECKING:
    from psframework.rpc.session.segments import Segments


@dataclass(slots=True)
class Outgoing:
    """A payload whose lane has been chosen.

    Args:
        lane: number of the lane; 0 without payload.
        sizes: lengths of the parts in bytes.
        parts: the parts themselves; None on the striped lane if they come later.
        segment: id of the shared segment, or of the device memory, that holds them.
        offsets: where each part starts in it.
        release: gives the segment's memory back.
    """

    lane: int = frames.NO_LANE
    sizes: Sequence[int] = ()
    parts: Sequence[Buffer] | None = ()
    segment: int = 0
    offsets: Sequence[int] = ()
    release: Callable[[], None] | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of all parts."""
        return sum(self.sizes)

    def fill(self, frame: Frame) -> None:
        """Writes what the frame must say about the payload."""
        frame.lane = self.lane  # type: ignore[assignment]
        frame.sizes.extend(self.sizes)
        if self.lane == frames.INLINE:
            frame.parts.extend(bytes(part) for part in self.parts or ())
        elif self.lane in frames.PLACED:
            frame.segment = self.segment
            frame.offsets.extend(self.offsets)

    def free(self) -> None:
        """The other end is done with the payload; harmless twice."""
        if self.release is not None:
            release, self.release = self.release, None
            release()


NOTHING = Outgoing()


def byte_views(parts: Sequence[Part]) -> list[memoryview]:
    """The parts as bytes on the host; ArgumentError for a buffer that is not C-contiguous."""
    try:
        return _views(parts)  # as nearly always
    except TypeError:  # some are on a device
        return _views([part.host() if type(part) is DeviceBytes else part for part in parts])


def part_views(parts: Sequence[Part]) -> Sequence[memoryview | DeviceBytes]:
    """As `byte_views`, but what is on a device stays there."""
    try:
        return _views(parts)
    except TypeError:
        return [part if type(part) is DeviceBytes else _views((part,))[0] for part in parts]


def _views(parts: Sequence[Part]) -> list[memoryview]:
    views = []
    for index, part in enumerate(parts):
        view = memoryview(part)  # type: ignore[arg-type] # TypeError for what is on a device
        if not view.c_contiguous:
            raise ArgumentError(f"part {index} is not C-contiguous; pass it through wire.spec.as_bytes")
        views.append(view.cast("B") if view.nbytes else memoryview(b""))
    return views


class Sender:
    """Chooses lanes for the payloads of one session.

    Args:
        port: knows which lanes both ends share.
        segments: the shared-memory lane.
        pool: where private copies are kept.
    """

    def __init__(self, port: Port, segments: Segments, pool: BufferPool) -> None:
        self._port = port
        self._segments = segments
        self._pool = pool

    def choose_now(self, views: Sequence[memoryview]) -> Outgoing:
        """A lane that needs no preparation: not shared memory.

        Raises:
            ArgumentError: too large for the inline lane, and no other was agreed on.
        """
        sizes = [len(view) for view in views]
        lane = choose(sizes, self._port.lanes)
        if lane is Lane.INLINE and sum(sizes) > frames.MAX_MESSAGE // 2:
            raise ArgumentError(f"{sum(sizes)} bytes are too many for the inline lane alone: allow striped")
        return Outgoing(int(frames.NUMBERS[lane]), sizes, views)

    async def choose(self, parts: Sequence[memoryview | DeviceBytes]) -> Outgoing:
        """The cheapest lane for these bytes; in shared memory, or a device's, they are when it returns."""
        sizes = [len(part) for part in parts]
        views, placed = self._on_device(parts, sizes)
        if placed is None and Lane.SHM in self._port.lanes and sum(sizes) > INLINE_BYTES:
            placed = await self._segments.place(views, sizes)
        return placed or self.choose_now(views)

    def _on_device(
        self, parts: Sequence[memoryview | DeviceBytes], sizes: Sequence[int]
    ) -> tuple[Sequence[memoryview], Outgoing | None]:
        """The payload on the device lane; else None, and the parts for the lanes of the host."""
        if sum(sizes) < DEVICE_BYTES or DeviceBytes not in map(type, parts):
            return cast(Sequence[memoryview], parts), None
        if Lane.DEVICE in self._port.lanes:
            placed = self._segments.devices.place(parts, sizes)
            if placed is not None:
                return (), placed
        return byte_views(parts), None

    def copy(self, parts: Sequence[memoryview | DeviceBytes]) -> Outgoing:
        """A payload of copies, so that its owner may change the parts at once.

        The one copy goes straight into shared memory where there is room; else into private memory, for
        another lane. Parts that can't change (`bytes`) are not copied.

        Raises:
            ArgumentError: as `choose_now`.
        """
        sizes = [len(part) for part in parts]
        views, placed = self._on_device(parts, sizes)
        if placed is None and Lane.SHM in self._port.lanes and sum(sizes) > INLINE_BYTES:
            placed = self._segments.place_now(views, sizes)
        if placed is not None:
            return placed
        payload = self.choose_now(views)
        payload.parts = [self._private(view) for view in views]
        return payload

    def _private(self, view: memoryview) -> Buffer:
        if isinstance(view.obj, bytes):
            return view
        if len(view) <= INLINE_BYTES:
            return bytes(view)
        copy = self._pool.take(len(view))
        copy_into(copy, view)
        return copy

    def count(self, payload: Outgoing) -> None:
        """Counts a payload that leaves."""
        self._port.stats.add_sent(frames.LANES[payload.lane], payload.nbytes)
