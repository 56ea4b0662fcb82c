"""Arrays that a backward may write gradients of leaves into, or add them to: that saves copies."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

from psframework.backend import Array

if TYPE_CHECKING:
    from psframework.autograd.traced import Traced


class _Offered(threading.local):
    def __init__(self) -> None:
        self.arrays: dict[int, Array] = {}
        self.totals: Mapping[Traced, np.ndarray] = {}


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


@contextmanager
def summing(totals: Mapping[Traced, np.ndarray]) -> Iterator[None]:
    """Rules may add gradients of leaves to these arrays, in this thread, until the block ends.

    For what a rule has added it answers None, so the backward does not have it. One that fails leaves the
    arrays with what has been added so far.

    Args:
        totals: by leaf, an array of its shape and dtype, on the host.
    """
    before, _offered.totals = _offered.totals, totals
    try:
        yield
    finally:
        _offered.totals = before


def total_of(leaf: Traced | None) -> np.ndarray | None:
    """The array that gradients of a leaf may be added to."""
    return None if leaf is None or not _offered.totals else _offered.totals.get(leaf)


def claim(array: Array | None) -> np.ndarray | None:
    """The array, if it is offered and on the host; nobody else gets it then."""
    if array is None or not _offered.arrays:
        return None
    found = _offered.arrays.pop(id(array), None)
    return found if type(found) is np.ndarray else None
