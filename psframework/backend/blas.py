"""`total += a @ b` in one pass over `total`, by the BLAS that NumPy itself computes with.

NumPy has no such call. Its two steps write the product, read it again, and go over `total` besides: half as
long again as a product of few rows takes. Gradients of weights over micro-batches are sums of such products.
Source: gemm with beta = 1, Dongarra et al., A Set of Level 3 Basic Linear Algebra Subprograms (1990).
"""

from __future__ import annotations

import ctypes
import importlib
from functools import cache
from typing import Any, Final, TypeAlias

import numpy as np

_Number: TypeAlias = type[ctypes.c_float] | type[ctypes.c_double]
_Integer: TypeAlias = type[ctypes.c_int64] | type[ctypes.c_int32]

_NUMBERS: Final[dict[np.dtype[Any], tuple[str, _Number]]] = {
    np.dtype(np.float32): ("s", ctypes.c_float),
    np.dtype(np.float64): ("d", ctypes.c_double),
}
_SYMBOLS: Final[tuple[tuple[str, _Integer], ...]] = (  # of NumPy's wheels first, then of distributions
    ("scipy_cblas_{}gemm64_", ctypes.c_int64),
    ("cblas_{}gemm64_", ctypes.c_int64),
    ("scipy_cblas_{}gemm", ctypes.c_int32),
    ("cblas_{}gemm", ctypes.c_int32),
)
_ROW_MAJOR: Final = 101
_AS_IT_IS, _TRANSPOSED = 111, 112
_LARGEST: Final = (1 << 31) - 1  # where integers have 32 bits


def add_product(total: np.ndarray, a: np.ndarray, b: np.ndarray) -> None:
    """Adds a product of matrices to an array.

    Without such a BLAS, or for arrays that it can't take, it is `total += a.dot(b)`, which raises its errors.

    Args:
        total: (m, n), writable; it shares no memory with the others.
        a: (m, k).
        b: (k, n).
    """
    fit = total.flags.writeable and a.shape[1] == b.shape[0] and total.shape == (a.shape[0], b.shape[1])
    call = _gemm(total.dtype) if fit and total.dtype == a.dtype == b.dtype else None
    layouts = [_layout(total), _layout(a), _layout(b)]
    if call is None or None in layouts or layouts[0][0] != _AS_IT_IS:  # type: ignore[index]
        total += a.dot(b)
    else:
        call(total, a, b, layouts)


def _layout(array: np.ndarray) -> tuple[int, int] | None:
    """Whether rows or columns lie together, and elements from one to the next; None: neither does."""
    rows, columns = array.shape
    down, right = array.strides
    size = array.itemsize
    if not rows * columns or not array.flags.aligned or max(rows, columns, down, right) > _LARGEST:
        return None
    if right == size and down >= columns * size and down % size == 0:
        return _AS_IT_IS, down // size
    if down == size and right >= rows * size and right % size == 0:
        return _TRANSPOSED, right // size
    return None


class _Gemm:
    """The function of a BLAS for one dtype.

    Args:
        function: `cblas_sgemm` or `cblas_dgemm`.
        number: of C, that the matrices hold.
        integer: of C, that sizes are given in.
    """

    def __init__(self, function: Any, number: _Number, integer: _Integer) -> None:
        order, pointer = ctypes.c_int, ctypes.c_void_p
        function.argtypes = [
            order, order, order, integer, integer, integer, number,
            pointer, integer, pointer, integer, number, pointer, integer,
        ]  # fmt: skip
        function.restype = None
        self._function = function

    def __call__(self, total: np.ndarray, a: np.ndarray, b: np.ndarray, layouts: list[Any]) -> None:
        (_, total_step), (a_order, a_step), (b_order, b_step) = layouts
        self._function(
            _ROW_MAJOR, a_order, b_order, a.shape[0], b.shape[1], a.shape[1], 1.0,
            _address(a), a_step, _address(b), b_step, 1.0, _address(total), total_step,
        )  # fmt: skip


def _address(array: np.ndarray) -> int:
    return array.__array_interface__["data"][0]  # type: ignore[no-any-return]


@cache
def _gemm(dtype: np.dtype[Any]) -> _Gemm | None:
    """That of NumPy's BLAS, if it has one that computes right."""
    if dtype not in _NUMBERS:
        return None
    letter, number = _NUMBERS[dtype]
    try:  # a symbol is looked for in what NumPy's extension is linked with, wherever that lies
        library = ctypes.CDLL(importlib.import_module("numpy._core._multiarray_umath").__file__)
    except (ImportError, OSError, TypeError):
        return None
    for symbol, integer in _SYMBOLS:
        function = getattr(library, symbol.format(letter), None)
        if function is not None:
            found = _Gemm(function, number, integer)
            return found if _computes(found, dtype) else None
    return None


def _computes(gemm: _Gemm, dtype: np.dtype[Any]) -> bool:
    """Whether it adds a small product of whole numbers, one factor transposed, as NumPy does."""
    total, a, b = (np.arange(n * m, dtype=dtype).reshape(n, m) for n, m in ((3, 5), (3, 2), (5, 2)))
    expected = total + a.dot(b.T)
    gemm(total, a, b.T, [_layout(total), _layout(a), _layout(b.T)])
    return bool((total == expected).all())
