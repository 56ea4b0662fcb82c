"""Arrays that a backward may write gradients of leaves into right away, which saves their owner a copy."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import numpy as np

from psframework.backend import Array


class _Offered(threading.local):
    def __init__(self) -> None:
        self.arrays: dict[int, Array] = {}


_offered = _Offered()


@contextmanager
def offering(arrays: Iterable[Array]) -> Iterator[None]:
    """Each of the arrays is for the first rule that claims it, in this thread, until the block ends.

    They are the `grad_buffer`s of leaves. What is in one afterwards is the gradient only if the backward
    answers that very array for the leaf.
    """
    before, _offered.arrays = _offered.arrays, {id(array): array for array in arrays}
    try:
        yield
    finally:
        _offered.arrays = before


def claim(array: Array | None) -> np.ndarray | None:
    """The array, if it is offered and on the host; nobody else gets it then."""
    if array is None or not _offered.arrays:
        return None
    found = _offered.arrays.pop(id(array), None)
    return found if type(found) is np.ndarray else None
