"""RANK and WORLD_SIZE, as launchers of processes set them."""

from __future__ import annotations

import operator
import os
from collections.abc import Mapping

from psframework.errors import ArgumentError
from psframework.rpc import world


def environment_of_ranks(
    world_size: int | None, environment: Mapping[str, str] = os.environ
) -> tuple[int, int | None]:
    """The size of a group, and this process's rank in it (None: whichever).

    Args:
        world_size: that somebody asked for; None: that of the environment.
        environment: where WORLD_SIZE and RANK are looked for. RANK is only that of groups of all processes.

    Raises:
        ArgumentError: no size is known, or it is no integer.
        ConfigurationError: what is in the environment can't be.
    """
    everybody = world.world_size(environment)
    size = everybody if world_size is None else world_size
    if size is None:
        raise ArgumentError("how many members? Pass world_size=, or start the processes with `psf run`")
    try:
        size = operator.index(size)
    except TypeError:
        raise ArgumentError(f"world_size={size!r}: not an integer") from None
    return size, world.own_rank(environment) if size == everybody else None
