"""Which cluster the running code belongs to."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from psframework.errors import ArgumentError
from psframework.rpc.current import current as _current

if TYPE_CHECKING:
    from psframework.cluster.handle import Cluster


def current_cluster() -> Cluster:
    """The cluster that the running code belongs to: in the body of `psf.connect` and what it calls, and in
    functions that peers call, also in those that run in a thread.

    Raises:
        ArgumentError: there is none.
    """
    cluster: Cluster | None = _current.get()
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
