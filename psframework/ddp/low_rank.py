"""Matrices as products of thin ones, for PowerSGD. No I/O.

Thin matrices are kept by rows: `p` of shape (rank, n) and `q` of (rank, m) stand for the matrix p.T @ q. What
all ranks must find alike, though their CPUs or numbers of threads differ, is computed elementwise or added up
in a fixed order: the bits of `@` depend on both.
"""

from __future__ import annotations

import zlib
from typing import Any, Final

import numpy as np

from psframework.backend import Array, DType, array_like, asnumpy, xp

_BLOCK: Final = 1 << 16  # elements of a matrix that are worked on at once, to stay in the cache
_DEPENDENT: Final = 1e-10  # of the squared length of a row: what is below is rounding


def pays(shape: tuple[int, ...], rank: int) -> bool:
    """Whether a parameter of this shape is smaller as a product of this rank. The first axis is the rows."""
    if len(shape) < 2:
        return False
    n, m = shape[0], int(np.prod(shape[1:]))
    return (n + m) * rank < n * m


def noise(seed: int, name: str, number: int, length: int) -> Array:
    """Numbers in [-1, 1), the same on every rank and for every version of NumPy."""
    raw = np.random.PCG64([seed, zlib.crc32(name.encode()), number]).random_raw(length)
    return (raw >> np.uint64(11)) * 2.0**-52 - 1.0


def fresh(seed: int, name: str, shape: tuple[int, int], like: Array) -> Array:
    """The `q` to begin with, on the device of `like`."""
    rows = [noise(seed, name, number, shape[1]) for number in range(shape[0])]
    return array_like(np.stack(rows).astype(like.dtype), like)


def orthonormal(rows: Array, dtype: DType) -> Array:
    """The rows, made orthogonal and of length 1 one after the other; 0 where one depends on those before."""
    namespace = xp(rows)
    work = rows.astype(np.float64)
    with np.errstate(all="ignore"):
        for k in range(len(work)):
            before = _dot(work[k], work[k])
            for _ in range(2):  # once leaves what rounding left
                for j in range(k):
                    work[k] -= _dot(work[j], work[k]) * work[j]
            length = _dot(work[k], work[k])
            keep = length > before * _DEPENDENT  # on a GPU, nobody waits for it
            work[k] *= namespace.where(keep, 1 / namespace.sqrt(namespace.where(keep, length, 1.0)), 0.0)
    return work.astype(dtype)


def _dot(a: Array, b: Array) -> Any:
    """The sum of products, halves added to each other: one order everywhere."""
    product = a * b
    n = len(product)
    while n > 1:
        half = (n + 1) // 2
        product[: n - half] += product[half:n]
        n = half
    return product[0]


def refill(rows: Array, seed: int, name: str, step: int) -> None:
    """Puts new rows in place of those that are 0: a direction once lost would stay so."""
    lost = ~asnumpy((rows != 0).any(axis=1))
    for number in np.flatnonzero(lost).tolist():
        made = noise(seed, name, step * len(rows) + number, rows.shape[1])
        rows[number] = array_like(made.astype(rows.dtype), rows)


def expand(p: Array, q: Array, total: Array, buffer: Array, residual: Array | None) -> None:
    """`buffer` becomes p.T @ q, as far as its dtype holds it; `residual` what of `total` that leaves.

    Args:
        p: (rank, n).
        q: (rank, m).
        total: (n, m), what p.T @ q stands for; may be `buffer`.
        buffer: (n, m).
        residual: (n, m); None if it is to stay as it is.
    """
    n, m = total.shape
    step = max(1, _BLOCK // max(1, m))
    with np.errstate(all="ignore"):
        for start in range(0, n, step):
            cut = slice(start, min(start + step, n))
            block = p[0, cut, None] * q[0]
            for k in range(1, len(p)):
                block += p[k, cut, None] * q[k]
            block = block.astype(buffer.dtype, copy=False)
            if residual is not None:
                residual[cut] = total[cut] - block.astype(residual.dtype, copy=False)
            buffer[cut] = block
