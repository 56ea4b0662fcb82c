"""What the normalizations share."""

from __future__ import annotations

from typing import cast

from psframework import backend
from psframework.autograd.record import as_tensor
from psframework.autograd.tensor import Tensor
from psframework.backend import Array, DType
from psframework.errors import ArgumentError


def inverse_deviation(variance: Array, eps: float) -> Array:
    """1 / sqrt(variance + eps), in the array given."""
    xp = backend.xp(variance)
    variance += variance.dtype.type(eps)
    xp.sqrt(variance, out=variance)
    return cast(Array, xp.divide(1, variance, out=variance))


def row_means(rows: Array) -> Array:
    """(n, 1): the mean of each row of (n, m); a product with a vector reads the rows at memory's speed."""
    length = max(rows.shape[1], 1)
    return cast(Array, rows @ backend.xp(rows).full((rows.shape[1], 1), 1 / length, rows.dtype))


def row_sums(rows: Array) -> Array:
    """(n,): the sum of each row of (n, m)."""
    return cast(Array, rows @ backend.xp(rows).ones(rows.shape[1], rows.dtype))


def cast_to(array: Array, dtype: DType) -> Array:
    """`array` in `dtype`."""
    return array if array.dtype == dtype else array.astype(dtype)


def parameter(name: str, what: str, value: Tensor | Array | None, shape: tuple[int, ...]) -> Tensor | None:
    """A factor or a summand as a tensor of this shape, or None.

    Raises:
        ArgumentError: another shape.
    """
    if value is None:
        return None
    tensor = as_tensor(value, name)
    if tensor.shape != shape:
        raise ArgumentError(f"{name}: {what} must have shape {shape}, got {tensor.shape}")
    return tensor


def floating(name: str, x: Tensor | Array) -> Tensor:
    """`x` as a tensor of floating dtype.

    Raises:
        ArgumentError: it is not floating.
    """
    tensor = as_tensor(x, name)
    if not backend.is_floating(tensor.dtype):
        raise ArgumentError(f"{name}: dtype {tensor.dtype} is not floating: convert with .astype(np.float32)")
    return tensor
