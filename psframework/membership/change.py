"""A decided change of the coordinator's state: what to store, and how it becomes visible or is taken back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from psframework.membership.store import Write


def _nothing() -> None:
    pass


@dataclass(frozen=True, slots=True)
class Change:
    """Decided in memory, to be stored before anybody hears of it.

    Args:
        writes: what makes it durable.
        publish: called once it is.
        undo: called instead if the store failed, newest change first.
    """

    writes: tuple[Write, ...]
    publish: Callable[[], None] = _nothing
    undo: Callable[[], None] = _nothing
