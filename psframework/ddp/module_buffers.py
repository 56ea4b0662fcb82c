"""The buffers of a model, such as running statistics, as one array that one rank sends to all."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from psframework import backend
from psframework.nn import Module

Bytes = npt.NDArray[np.uint8]


class ModuleBuffers:
    """All buffers of a model, whose arrays it may replace.

    Args:
        module: the model.
    """

    def __init__(self, module: Module) -> None:
        self._places: list[tuple[Module, str]] = []
        for path, _ in module.named_buffers():
            owner, _, name = path.rpartition(".")
            self._places.append((module.get_submodule(owner), name))

    def __len__(self) -> int:
        return len(self._places)

    def pack(self) -> Bytes:
        """A copy of their bytes, one after the other."""
        return np.concatenate([_bytes(backend.asnumpy(array)) for array in self._arrays()])

    def unpack(self, flat: Bytes) -> None:
        """Writes what another rank packed into the buffers, in place."""
        start = 0
        for array in self._arrays():
            stop = start + array.nbytes
            values = flat[start:stop].view(array.dtype).reshape(array.shape)
            array[...] = backend.to_device(values, backend.device_of(array))
            start = stop

    def _arrays(self) -> list[Any]:
        arrays = [getattr(owner, name) for owner, name in self._places]
        return [array for array in arrays if array is not None]


def _bytes(array: npt.NDArray[Any]) -> Bytes:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)
