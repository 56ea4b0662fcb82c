"""Products of matrices of which one side is far longer than the others, as convolutions make them.

OpenBLAS has kernels for small products that pack nothing (about a million multiplications at most, on x86-64
with AVX-512 and on Arm with SVE). A thin product cut into such parts ran at up to four times the speed, and
where there are none of these kernels cutting costs next to nothing.
"""

from __future__ import annotations

import numpy as np

from psframework.backend import Array

SMALL = 1_000_000
# Up to here parts are long enough, and write long enough rows, to be worth it; all measured.
ROWS, WEIGHTS, GRADIENTS = 32, 4608, 512


def wide_product(left: Array, right: Array) -> Array:
    """`left @ right`, (m, k) by (k, n), for an n far above m and k."""
    (rows, inner), length = left.shape, right.shape[1]
    part = SMALL // max(rows * inner, 1)
    if rows > ROWS or rows * inner > WEIGHTS or length <= part or type(left) is not np.ndarray:
        return left @ right
    out = np.empty((rows, length), np.result_type(left, right))
    for start in range(0, length, part):
        here = slice(start, start + part)
        np.matmul(left, right[:, here], out=out[:, here])
    return out


def long_product(left: Array, right: Array) -> Array:
    """`left @ right.T`, (m, n) by (k, n), for an n far above m and k."""
    (rows, length), columns = left.shape, len(right)
    part = SMALL // max(rows * columns, 1)
    if rows * columns <= GRADIENTS and length > part and type(left) is np.ndarray:
        total = left[:, :part] @ right[:, :part].T
        for start in range(part, length, part):
            here = slice(start, start + part)
            total += left[:, here] @ right[:, here].T
        return total
    # The larger one first: its rows are what BLAS cuts its work by.
    return (right @ left.T).T if columns > rows else left @ right.T
