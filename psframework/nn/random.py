"""The random numbers of this process: initial values and dropout masks, by one seed, on any device."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np

from psframework import backend
from psframework.autograd import Tensor
from psframework.backend import Array

_generator = np.random.default_rng()
_unused = np.random.default_rng()
_apart: ContextVar[np.random.Generator | None] = ContextVar("psframework_apart", default=None)

# SplitMix64 (Steele, Lea and Flood, OOPSLA 2014): a number of 64 bits of a place in its stream.
_STEP = np.uint64(0x9E3779B97F4A7C15)
_MIXES = ((30, np.uint64(0xBF58476D1CE4E5B9)), (27, np.uint64(0x94D049BB133111EB)))
_LAST_SHIFT = 31


def manual_seed(seed: int) -> None:
    """Seeds the initial values and dropout masks of this process; equal seeds give equal models."""
    # The same object goes on with another state: whoever holds it (`recompute`) must not lose it.
    _generator.bit_generator.state = np.random.default_rng(seed).bit_generator.state


def generator(like: Tensor | Array | None = None) -> Any:
    """The process's generator, as `manual_seed` left it; for an array on a device one that draws there.

    Args:
        like: what the numbers are for; the host if None.
    """
    array = like.data if isinstance(like, Tensor) else like
    host = _apart.get() or _generator
    if array is None or backend.xp(array) is np:
        return host
    return DeviceGenerator(host, array)


@contextmanager
def apart() -> Iterator[None]:
    """In this block, in this context, others' numbers are drawn: for values that are overwritten at once."""
    with drawing_from(_unused):
        yield


@contextmanager
def drawing_from(numbers: np.random.Generator) -> Iterator[None]:
    """In this block, in this context, the numbers of this generator are drawn."""
    token = _apart.set(numbers)
    try:
        yield
    finally:
        _apart.reset(token)


def get_state() -> dict[str, Any]:
    """The state of the process's generator: plain values, for a checkpoint."""
    return dict(_generator.bit_generator.state)


def set_state(state: dict[str, Any]) -> None:
    """Goes on where `get_state` was called."""
    _generator.bit_generator.state = state


class DeviceGenerator:
    """Draws on a device, by a seed that a generator of the host draws for each array.

    So what is drawn depends on the host's generator alone: its state is the state, for checkpoints and for
    `recompute`.

    Args:
        host: gives the seeds.
        like: an array on the device.
    """

    def __init__(self, host: np.random.Generator, like: Array) -> None:
        self._host, self._like = host, like

    def __eq__(self, other: object) -> bool:
        """As a generator it is the host's, whose state it uses: `recompute` keeps one state for both."""
        return self._host is (other._host if isinstance(other, DeviceGenerator) else other)

    def __hash__(self) -> int:
        return hash(self._host)

    @property
    def bit_generator(self) -> Any:
        """That of the host's generator."""
        return self._host.bit_generator

    def random(self, size: tuple[int, ...], dtype: Any = np.float64) -> Array:
        """Uniform numbers in [0, 1), float32 or float64, of this shape."""
        seed = self._host.integers(0, 1 << 64, dtype=np.uint64)
        count, xp = int(np.prod(size)), backend.xp(self._like)
        with backend.device_of(self._like):
            z = xp.arange(1, count + 1, dtype=np.uint64)
        z *= _STEP
        z += seed
        for shift, factor in _MIXES:
            z ^= xp.right_shift(z, shift)
            z *= factor
        z ^= xp.right_shift(z, _LAST_SHIFT)
        bits = 24 if np.dtype(dtype) == np.float32 else 53
        numbers = xp.right_shift(z, 64 - bits).astype(dtype) * np.dtype(dtype).type(2.0**-bits)
        return numbers.reshape(size)  # type: ignore[no-any-return]
