"""Kernels compiled when they are first used, and kept."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from psframework.backend.arrays import Array
from psframework.backend.dtypes import DType
from psframework.backend.kernels.source import prelude

WARP, MOST = 32, 1024
"""Threads of a warp, and the most of a block."""


class RowKernel(NamedTuple):
    """A kernel of blocks and threads.

    Attributes:
        name: in the source.
        dtype: of the arrays that are its T.
        source: CUDA C, without what `source.prelude` puts before it.
    """

    name: str
    dtype: DType
    source: str


class Launcher:
    """Compiles and starts kernels.

    Args:
        cp: CuPy, or what stands for it: `RawKernel`, `ElementwiseKernel`, `empty`.
    """

    def __init__(self, cp: Any) -> None:
        self.cp = cp
        self._kernels: dict[tuple[str, ...] | RowKernel, Any] = {}

    def start(self, kernel: RowKernel, grid: tuple[int, ...], block: int, arguments: tuple[Any, ...]) -> None:
        """Start a kernel.

        Args:
            kernel: source, name, and dtype of its arrays.
            grid: how many blocks, by axis.
            block: threads of each.
            arguments: arrays, and NumPy scalars of the C types that the kernel takes.

        Raises:
            TypeError: the arrays are not on one device: the kernel would follow their addresses all the same.
        """
        places = [argument.device for argument in arguments if not isinstance(argument, np.generic)]
        if any(place != places[0] for place in places):
            raise TypeError(f"{kernel.name}: arrays on different devices: {[str(place) for place in places]}")
        compiled = self._kernels.get(kernel)
        if compiled is None:
            # Two threads may both compile: either result serves.
            code = prelude(kernel.dtype) + kernel.source
            compiled = self._kernels[kernel] = self.cp.RawKernel(code, kernel.name)
        compiled(grid, (block,), arguments)

    def elementwise(self, inputs: str, outputs: str, body: str, name: str) -> Any:
        """A kernel over elements; one for each `name` and body."""
        kernel = self._kernels.get((name, body))
        if kernel is None:
            kernel = self._kernels[name, body] = self.cp.ElementwiseKernel(inputs, outputs, body, name)
        return kernel

    def contiguous(self, array: Array) -> Array:
        """`array` in C order, which is what raw kernels read."""
        made: Array = array if array.flags.c_contiguous else self.cp.ascontiguousarray(array)
        return made


def threads(length: int) -> int:
    """Threads of a block that works on `length` elements."""
    return min(MOST, max(WARP, -(-length // WARP) * WARP))
