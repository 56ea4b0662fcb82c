"""Room for the parameters of layers; for modules that a peer describes, within a bound and without values.

Layers ask for their arrays here and fill them with `init`. A module that is made to be given another's state
needs no initial values; and whoever described it must not get more memory than the state will fill.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np

from psframework.backend import Array
from psframework.errors import ArgumentError


class Bound:
    """How much may be made, over all modules of one message.

    Args:
        nbytes: of parameters and buffers.
        modules: how many modules.
    """

    __slots__ = ("modules", "nbytes")

    def __init__(self, nbytes: int, modules: int) -> None:
        self.nbytes = nbytes
        self.modules = modules

    def take(self, nbytes: int, modules: int = 0) -> None:
        """Counts something as made, before it is; ArgumentError if that is more than may be."""
        if nbytes > self.nbytes or modules > self.modules:
            raise ArgumentError("it is larger than the state that came with it")
        self.nbytes -= nbytes
        self.modules -= modules


_bound: ContextVar[Bound | None] = ContextVar("psframework_making", default=None)


@contextmanager
def within(bound: Bound | None) -> Iterator[None]:
    """In this block layers are made to be given a state: within a bound, all zeros. None: made as usual."""
    token = _bound.set(bound)
    try:
        yield
    finally:
        _bound.reset(token)


def is_bounded() -> bool:
    """Whether a state will come, so that initial values would be for nothing."""
    return _bound.get() is not None


def empty(shape: int | tuple[int, ...], dtype: Any = None) -> Array:
    """An array for `init` to fill.

    Args:
        shape: of the array.
        dtype: float32 if None.

    Raises:
        ArgumentError: it is beyond the bound.
    """
    bound, dtype = _bound.get(), np.dtype(np.float32 if dtype is None else dtype)
    if bound is None:
        return np.empty(shape, dtype)
    axes = shape if isinstance(shape, tuple) else (shape,)
    bound.take(dtype.itemsize * math.prod(map(operator.index, axes)))  # NumPy's integers would overflow
    return np.zeros(shape, dtype)  # what was in the memory before is nobody's business


def count(nbytes: int = 0, modules: int = 0) -> None:
    """Something is about to be made in another way; ArgumentError if it is beyond the bound."""
    bound = _bound.get()
    if bound is not None:
        bound.take(nbytes, modules)
