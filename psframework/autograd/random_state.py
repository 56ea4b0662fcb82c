"""The states of random generators before a function drew from them: `recompute` draws the same again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np

from psframework.errors import ArgumentError


class RandomStates:
    """The state of each generator when a block first drew from it."""

    def __init__(self) -> None:
        self._states: dict[np.random.Generator, Any] = {}

    def note(self, generator: np.random.Generator) -> None:
        """`generator` is about to be drawn from."""
        if generator not in self._states:
            state = getattr(getattr(generator, "bit_generator", None), "state", None)
            if not isinstance(state, Mapping):
                raise ArgumentError(
                    f"recompute cannot draw from {type(generator).__name__} the same numbers twice: use a "
                    "numpy.random.Generator"
                )
            self._states[generator] = state

    @contextmanager
    def recorded(self) -> Iterator[None]:
        """Note the generators that the block draws from."""
        token = _open.set((*_open.get(), self))
        try:
            yield
        finally:
            _open.reset(token)

    @contextmanager
    def replayed(self) -> Iterator[None]:
        """Let the block draw what the recorded one drew; afterwards the generators go on as if it had not."""
        now = {generator: generator.bit_generator.state for generator in self._states}
        for generator, state in self._states.items():
            generator.bit_generator.state = state
        try:
            yield
        finally:
            for generator, state in now.items():
                generator.bit_generator.state = state


_open: ContextVar[tuple[RandomStates, ...]] = ContextVar("psframework_random_states", default=())


def replayable(generator: np.random.Generator) -> np.random.Generator:
    """`generator` itself, noted by an enclosing `recompute`: operations draw from what this answers."""
    for states in _open.get():
        states.note(generator)
    return generator
