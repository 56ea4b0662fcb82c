"""How the descriptors of all ranks get to all over a network, so that all find a difference alike. No I/O.

Up to `MESH` ranks each tells each other rank, in the letter that brings the first data. Among more, what is
known goes to the rank 1, 2, 4, ... further on, in as many rounds as that takes (a dissemination barrier); it
then is one of each kind of descriptor, and the lowest rank that has it.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Final

from psframework.collective.descriptor import Descriptor
from psframework.errors import WireError

MESH: Final = 16
"""Ranks up to which each tells each."""

_KINDS: Final = 6  # different descriptors that are passed on; two already are an error
_ENTRY: Final = struct.Struct("<IH")  # rank, bytes of the descriptor


def distances(size: int) -> list[int]:
    """How much further on each round's letter goes."""
    return [1 << power for power in range((size - 1).bit_length())]


def distinct(descriptors: Mapping[int, Descriptor]) -> dict[int, Descriptor]:
    """One of each kind, by the lowest rank that has it. In which order ranks were merged does not matter."""
    lowest: dict[Descriptor, int] = {}
    for rank in sorted(descriptors):
        lowest.setdefault(descriptors[rank], rank)
    return {rank: each for each, rank in list(lowest.items())[:_KINDS]}


def encode(descriptors: Mapping[int, Descriptor]) -> bytes:
    """As a letter's header."""
    written = [(rank, each.encode()) for rank, each in descriptors.items()]
    return b"".join(_ENTRY.pack(rank, len(each)) + each for rank, each in written)


def decode(header: bytes) -> dict[int, Descriptor]:
    """What `encode` wrote. WireError if it can't be right."""
    found: dict[int, Descriptor] = {}
    start = 0
    while start < len(header):
        try:
            rank, length = _ENTRY.unpack_from(header, start)
        except struct.error as error:
            raise WireError(f"not a list of descriptors: {error}") from None
        start += _ENTRY.size + length
        found[rank] = Descriptor.decode(header[start - length : start])
    return found
