"""What a launcher told this process of its job: `psf run`, or another that sets the same names."""

from __future__ import annotations

import os
from collections.abc import Mapping

from psframework.errors import ConfigurationError


def world_size(environment: Mapping[str, str] = os.environ) -> int | None:
    """How many ranks were started (WORLD_SIZE); None if this process was not started as one of several.

    Raises:
        ConfigurationError: it is no number.
    """
    return _number("WORLD_SIZE", 1, environment)


def own_rank(environment: Mapping[str, str] = os.environ) -> int | None:
    """This process's rank (RANK); None if it was given none.

    Raises:
        ConfigurationError: it is no number, or not below the world size.
    """
    rank, size = _number("RANK", 0, environment), world_size(environment)
    if rank is not None and size is not None and rank >= size:
        raise ConfigurationError(f"RANK={rank} with WORLD_SIZE={size}: ranks go from 0 to {size - 1}")
    return rank


def _number(name: str, least: int, environment: Mapping[str, str]) -> int | None:
    text = environment.get(name)
    if not text:
        return None
    if not text.isdecimal() or int(text) < least:
        raise ConfigurationError(f"{name}={text!r}: a number from {least} on")
    return int(text)
