"""Kernels compiled when they are first used, and kept."""

from __future__ import annotations

from typing import Any

from psframework.backend.arrays import Array
from psframework.backend.dtypes import DType
from psframework.backend.kernels.source import prelude

WARP, MOST = 32, 1024
"""Threads of a warp, and the most of a block."""


class Launcher:
    """Compiles and starts kernels.

    Args:
        cp: CuPy, or what stands for it: `RawKernel`, `ElementwiseKernel`, `empty`.
    """

    def __init__(self, cp: Any) -> None:
        self.cp = cp
        self._kernels: dict[tuple[str, Any], Any] = {}

    def raw(self, source: str, name: str, dtype: DType) -> Any:
        """The kernel `name` of a source, for arrays of `dtype`."""
        kernel = self._kernels.get((name, dtype))
        if kernel is None:
            # Two threads may both compile: either result serves.
            kernel = self._kernels[name, dtype] = self.cp.RawKernel(prelude(dtype) + source, name)
        return kernel

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
