"""Arrays that a backward may write gradients of leaves into, or add them to: that saves copies."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

from psframework.backend import Array

if TYPE_CHECKING:
    from psframework.autograd.traced import Traced


class _Offered(threading.local):
    def __init__(self) -> None:
        self.places: dict[Traced, Array] = {}
        self.totals: Mapping[Traced, np.ndarray] = {}


_offered = _Offered()


@contextmanager
def offering(places: dict[Traced, Array]) -> Iterator[None]:
    """Each array is for the first rule that claims it for its leaf, in this thread, until the block ends.

    What is in one afterwards is the gradient only if the backward answers that very array for the leaf.

    Args:
        places: by leaf, an array of its shape; those that are claimed are taken out.
    """
    before, _offered.places = _offered.places, places
    try:
        yield
    finally:
        _offered.places = before


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


def claim(leaf: Traced) -> np.ndarray | None:
    """The array that is offered for a leaf, if it is on the host; nobody else gets it then."""
    found = _offered.places.pop(leaf, None)
    return found if type(found) is np.ndarray else None


def total_of(leaf: Traced) -> np.ndarray | None:
    """The array that gradients of a leaf may be added to."""
    return _offered.totals.get(leaf)
