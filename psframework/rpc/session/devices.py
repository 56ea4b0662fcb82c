"""The device lane of one session: payloads in memory of a GPU that both ends have opened.

To be on one host is not enough: the two ends may not see the same GPU, or not be allowed to open its memory.
So the end that has an array to send offers memory of its GPU, and sends what it has by way of the host. The
other end opens that memory, looks for the random bytes at its beginning, and says so; later arrays go there.
As in shared memory, what a request brings stays in its place until FREE comes, and a reply until RELEASE.

Payloads are copied out before anybody else sees them: no peer changes an array under a function. Whoever has
a handle can read and write all that it names, so memory that is offered holds payloads of this session alone.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final

import numpy as np

from psframework import backend
from psframework.backend import Device, SharedMemory
from psframework.errors import ConfigurationError, PsfError, ResourceExhausted, WireError
from psframework.proto.v1.call_pb2 import DeviceOffer
from psframework.rpc.session import frames
from psframework.rpc.session.arena import Arena, Region, layout
from psframework.rpc.session.frames import Frame
from psframework.rpc.session.payload import Outgoing
from psframework.rpc.status import detail_to_error, error_to_detail
from psframework.wire.device_bytes import DeviceBytes, Part

log = logging.getLogger("psframework.rpc")

MAX_OPENED: Final = 64
SMALLEST: Final = 64 << 20
ANSWER_SECONDS: Final = 60.0  # the other end may have to import CuPy first
PROOF_BYTES: Final = 32


class DeviceSegments:
    """Device memory of one session, of both sides.

    Args:
        budget: bytes of device memory that outgoing payloads may take; 0 keeps them out of it.
    """

    def __init__(self, budget: int) -> None:
        self._budget = budget
        self._arenas: list[tuple[Device, Arena[SharedMemory]]] = []
        self._opened: dict[int, SharedMemory | None] = {}  # None while it is being opened
        self._asked: dict[int, asyncio.Future[None]] = {}
        self._last = 0
        self._growing = False
        self._closed = False

    def bind(
        self, post: Callable[[Frame], object], spawn: Callable[[Coroutine[Any, Any, None]], None]
    ) -> None:
        """How frames leave, and who runs what takes time."""
        self._post, self._spawn = post, spawn

    # What leaves

    def place(self, parts: Sequence[Part], sizes: Sequence[int]) -> Outgoing | None:
        """Copies a payload into device memory.

        None if most of it is elsewhere, if both ends have no room on that device, or none yet: then some is
        offered, for later payloads.
        """
        device = _home(parts, sizes)
        if device is None:
            return None
        offsets, total = layout(sizes)
        region = self._take(device, total)
        if region is None:
            if not self._growing and total <= self._room():
                self._growing = True
                self._spawn(self._grow(device, total))
            return None
        try:
            for part, offset in zip(parts, offsets):
                if len(part):
                    source = part.array if isinstance(part, DeviceBytes) else np.frombuffer(part, np.uint8)
                    region.arena.segment.write(region.begin + offset, source)
        except Exception as error:  # of the driver
            region.free()
            self._give_up(error)
            return None
        places = [region.begin + offset for offset in offsets]
        return Outgoing(
            frames.DEVICE, sizes, segment=region.arena.number, offsets=places, release=region.free
        )

    def answered(self, frame: Frame) -> None:
        """The other end has opened memory that was offered, or can't."""
        asked = self._asked.get(frame.segment)
        if asked is None or asked.done():
            return
        if frame.HasField("error"):
            asked.set_exception(detail_to_error(frame.error))
        else:
            asked.set_result(None)

    def _take(self, device: Device, nbytes: int) -> Region[SharedMemory] | None:
        for there, arena in self._arenas:
            if there == device and (region := arena.take(nbytes)) is not None:
                return region
        return None

    def _room(self) -> int:
        return self._budget - sum(arena.segment.nbytes for _, arena in self._arenas)

    async def _grow(self, device: Device, nbytes: int) -> None:
        proof = secrets.token_bytes(PROOF_BYTES)
        size = min(self._room(), max(SMALLEST, 2 * nbytes))
        self._last += 1
        number = self._last
        asked = self._asked[number] = asyncio.get_running_loop().create_future()
        taken, memory = False, None
        try:
            memory, offer = await asyncio.to_thread(_offer, device, size, proof)
            if self._closed:
                return
            header = offer.SerializeToString()
            self._post(Frame(kind=frames.OFFER_DEVICE, segment=number, header=header))  # type: ignore[arg-type]
            async with asyncio.timeout(ANSWER_SECONDS):
                await asked
            if not self._closed:
                self._arenas.append((device, Arena(memory, number)))
                taken = True
        except Exception as error:
            self._give_up(error)
        finally:
            self._growing = False
            del self._asked[number]
            if memory is not None and not taken:
                memory.close()

    def _give_up(self, error: Exception) -> None:
        self._budget = 0
        if not self._closed:
            log.info("arrays on devices go by way of the host: %s", error)

    # What comes

    def offered(self, frame: Frame) -> None:
        """The other end offers memory; WireError if it offered that before, or too much."""
        if frame.segment in self._opened or len(self._opened) >= MAX_OPENED:
            raise WireError(f"device memory {frame.segment} was offered before, or {MAX_OPENED} are open")
        self._opened[frame.segment] = None
        self._spawn(self._open(frame.segment, frame.header))

    async def _open(self, number: int, header: bytes) -> None:
        answer = Frame(kind=frames.ANSWER_DEVICE, segment=number)  # type: ignore[arg-type]
        try:
            memory = await asyncio.to_thread(_opened, header)
        except Exception as error:
            refusal = error if isinstance(error, PsfError) else WireError(f"not opened: {error}")
            answer.error.CopyFrom(error_to_detail(refusal))
        else:
            if self._closed:
                memory.close()
            self._opened[number] = memory
        if not self._closed:
            self._post(answer)

    def parts(self, frame: Frame) -> list[DeviceBytes]:
        """Copies of the parts of a payload that the other end placed.

        Raises:
            WireError: no such memory was opened, or they leave it.
            ResourceExhausted: there is no room for them on the device.
        """
        memory = self._opened.get(frame.segment)
        if memory is None:
            raise WireError(f"no device memory {frame.segment} was opened in this session")
        try:
            places = zip(frame.offsets, frame.sizes)
            return [DeviceBytes(memory.read(offset, size)) for offset, size in places]
        except PsfError:
            raise
        except Exception as error:  # of the driver
            raise ResourceExhausted(f"arrays on a device could not be copied: {error}") from None

    def close(self) -> None:
        """The session has ended. CUDA keeps memory that the other end still has open."""
        self._closed = True
        for memory in [*self._opened.values(), *(arena.segment for _, arena in self._arenas)]:
            if memory is not None:
                memory.close()
        self._opened.clear()
        self._arenas.clear()
        for asked in self._asked.values():
            asked.cancel()


def _home(parts: Sequence[Part], sizes: Sequence[int]) -> Device | None:
    """The one device that holds arrays of a payload, if that is most of the payload."""
    there = [part for part in parts if isinstance(part, DeviceBytes)]
    devices = {part.device for part in there}
    return devices.pop() if len(devices) == 1 and 2 * sum(map(len, there)) >= sum(sizes) else None


def _offer(device: Device, nbytes: int, proof: bytes) -> tuple[SharedMemory, DeviceOffer]:
    ipc = device.platform.ipc()
    if ipc is None:
        raise ConfigurationError(f"memory of {device} can't be shared")
    memory = ipc.allocate(device.index, nbytes)
    try:
        memory.write(0, np.frombuffer(proof, np.uint8))
        address = ipc.address(device.index)
    except BaseException:
        memory.close()
        raise
    return memory, DeviceOffer(
        kind=device.kind, address=address, handle=memory.handle, nbytes=memory.nbytes, proof=proof
    )


def _opened(header: bytes) -> SharedMemory:
    offer = DeviceOffer.FromString(header)
    memory = backend.open_shared(offer.kind, offer.address, offer.handle, offer.nbytes)
    try:
        found = backend.asnumpy(memory.read(0, PROOF_BYTES)).tobytes()
        if not secrets.compare_digest(found, offer.proof):
            raise WireError("the memory that was opened is not what was offered")
    except BaseException:
        memory.close()
        raise
    return memory
