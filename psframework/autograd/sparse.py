"""SparseRows: the gradient of a table of which few rows were used."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy as np

from psframework import backend
from psframework.autograd.segments import group, sum_segments
from psframework.backend import Array, DType
from psframework.errors import ArgumentError


class SparseRows:
    """Rows of an array that is 0 elsewhere: what `Embedding(sparse=True)` leaves in `weight.grad`.

    It adds to others and to arrays, is scaled by numbers, and says `shape` and `dtype` as an array does.

    Args:
        rows: int64 of shape (n,), from 0 to `shape[0]` - 1; a row may come more than once.
        values: of shape (n, *shape[1:]), on the same device.
        shape: of the whole.

    Attributes:
        coalesced: whether `rows` is known to be ascending, each row once.
    """

    __slots__ = ("__weakref__", "coalesced", "rows", "shape", "values")
    __array_ufunc__ = None  # so that `array + rows` asks this class

    def __init__(self, rows: Array, values: Array, shape: tuple[int, ...], coalesced: bool = False) -> None:
        if rows.ndim != 1 or rows.dtype.kind not in "iu":
            raise ArgumentError(
                f"SparseRows: rows are integers of one axis, not {rows.dtype} of {rows.shape}"
            )
        if values.shape != (len(rows), *shape[1:]):
            raise ArgumentError(
                f"SparseRows: {len(rows)} rows of an array of shape {shape} need values of shape "
                f"{(len(rows), *shape[1:])}, not {values.shape}"
            )
        self.rows = rows if rows.dtype == np.int64 else rows.astype(np.int64)
        self.values = values
        self.shape = tuple(shape)
        self.coalesced = coalesced

    @property
    def dtype(self) -> DType:
        """Type of the values."""
        return self.values.dtype

    @property
    def ndim(self) -> int:
        """Number of axes of the whole."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements of the whole."""
        return int(np.prod(self.shape))

    @property
    def nbytes(self) -> int:
        """Bytes held: rows and values."""
        return self.rows.nbytes + self.values.nbytes

    def coalesce(self) -> SparseRows:
        """The same with `rows` ascending and each row once; equal rows are summed in a fixed order.

        16-bit values are summed in float32. Itself if it is so already.
        """
        if self.coalesced:
            return self
        rows, values = self.rows, self.values
        if len(rows):
            order, starts, sizes = group(rows, self.shape[0])
            rows = rows.take(order.take(starts))
            if len(starts) == len(order):
                values = values.take(order, axis=0)
            else:
                values = sum_segments(values, order, sizes).astype(self.dtype, copy=False)
        return SparseRows(rows, values, self.shape, coalesced=True)

    def to_dense(self) -> Array:
        """An array of the whole shape."""
        dense = backend.xp(self.values).zeros(self.shape, self.dtype)
        self.add_to(dense)
        return cast(Array, dense)

    def add_to(self, array: Array) -> None:
        """`array[rows] += values`, equal rows summed; in place.

        Raises:
            ArgumentError: an array of another shape.
        """
        if array.shape != self.shape:
            raise ArgumentError(f"SparseRows of shape {self.shape} added to an array of shape {array.shape}")
        once = self.coalesce()
        array[once.rows] += once.values.astype(array.dtype, copy=False)

    def copy(self) -> SparseRows:
        """The same in memory of its own."""
        return SparseRows(self.rows.copy(), self.values.copy(), self.shape, self.coalesced)

    def astype(self, dtype: Any) -> SparseRows:
        """The same with values of another dtype; itself if they have it."""
        if self.dtype == dtype:
            return self
        return SparseRows(self.rows, self.values.astype(dtype), self.shape, self.coalesced)

    def _map(self, function: Callable[[Array], Array]) -> SparseRows:
        return SparseRows(self.rows, function(self.values), self.shape, self.coalesced)

    def __mul__(self, number: Any) -> SparseRows:
        if not _is_number(number):
            return NotImplemented
        return self._map(lambda values: values * number)

    __rmul__ = __mul__

    def __truediv__(self, number: Any) -> SparseRows:
        if not _is_number(number):
            return NotImplemented
        return self._map(lambda values: values / number)

    def __neg__(self) -> SparseRows:
        return self._map(lambda values: -values)

    def __add__(self, other: Any) -> Any:
        if isinstance(other, SparseRows):
            if other.shape != self.shape:
                raise ArgumentError(f"SparseRows of shapes {self.shape} and {other.shape} do not add")
            xp = backend.xp(self.values)
            rows = xp.concatenate([self.rows, other.rows])
            return SparseRows(rows, xp.concatenate([self.values, other.values]), self.shape)
        if not backend.is_array(other):
            return NotImplemented
        dense = other.astype(np.promote_types(other.dtype, self.dtype), copy=True)
        self.add_to(dense)
        return dense

    __radd__ = __add__

    def __repr__(self) -> str:
        return f"<SparseRows {len(self.rows)} rows of {self.shape}, {self.dtype}>"


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | np.number) or (backend.is_array(value) and value.ndim == 0)
