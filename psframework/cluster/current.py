"""Which cluster the running code belongs to."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

from psframework.errors import ArgumentError

if TYPE_CHECKING:
    from psframework.cluster.handle import Cluster

_current: ContextVar[Cluster | None] = ContextVar("psframework_cluster", default=None)


def current_cluster() -> Cluster:
    """The cluster that the running code belongs to: in the body of `psf.connect` and what it calls, and in
    functions that peers call, also in those that run in a thread.

    Raises:
        ArgumentError: there is none.
    """
    cluster = _current.get()
    if cluster is None:
        raise ArgumentError(
            "no cluster here: call this inside `async with psf.connect(...)`, or in what a peer calls"
        )
    return cluster


@contextmanager
def current(cluster: Cluster) -> Iterator[None]:
    """Makes `cluster` the one that `current_cluster` finds, in this task and those that it starts."""
    before = _current.get()
    _current.set(cluster)
    try:
        yield
    finally:
        _current.set(before)


def enter(cluster: Cluster | None) -> None:
    """From here on, in this context, code belongs to `cluster`."""
    _current.set(cluster)
