"""Arrays on a device, in place of buffers: whoever can't take them there asks for their bytes on the host."""

from __future__ import annotations

from typing import Final, TypeAlias, final

from psframework import backend
from psframework.backend import Array, Device
from psframework.wire.memory import Buffer
from psframework.wire.spec import as_bytes

DEVICE_BYTES: Final = 1 << 20
"""Smaller arrays are as fast through the host, whose lanes need no word with the GPU's driver."""


@final
class DeviceBytes:
    """The bytes of an array on a device, of at least DEVICE_BYTES.

    Args:
        array: contiguous; its bytes are read when they leave.
    """

    __slots__ = ("_host", "array")

    def __init__(self, array: Array) -> None:
        self.array = array
        self._host: memoryview | None = None

    @property
    def device(self) -> Device:
        """Where they are."""
        return backend.device_of(self.array)

    def host(self) -> memoryview:
        """A copy on the host, made once."""
        if self._host is None:
            self._host = as_bytes(backend.asnumpy(self.array))
        return self._host

    def __len__(self) -> int:
        return self.array.nbytes

    def __bytes__(self) -> bytes:
        return bytes(self.host())


Part: TypeAlias = Buffer | DeviceBytes
"""A part of a payload."""
