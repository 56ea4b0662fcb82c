"""Which algorithm a collective takes, from a table that was measured. No I/O.

All ranks of a group must choose alike: the table's digest is among what they must agree on.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

from psframework.collective.descriptor import Operation
from psframework.errors import ArgumentError, ConfigurationError

NEVER: Final = 1 << 30
"""More ranks than there are."""

RING_FROM: Final = 17
"""Ranks from which on each talks to one other only, rather than to all."""

RINGING: Final = frozenset({Operation.ALL_REDUCE, Operation.REDUCE_SCATTER, Operation.ALL_GATHER})
"""What can go around a ring."""

ALWAYS: Final = 1 << 40
"""More bytes than an array has."""

MARGIN: Final = 0.1
"""A ring that is not faster by this share is not taken: it may be noise, and it adds in another order."""

_VERSION: Final = 1
_WHOLE: Final[dict[int, int]] = {2: ALWAYS, 4: 64 << 10, 16: 16 << 10, 64: 4 << 10}


class Algorithm(StrEnum):
    """How ranks on a network do an operation."""

    WHOLE = "whole"  # all to all in one round, and each rank combines everything
    DIRECT = "direct"
    RING = "ring"


@dataclass(frozen=True)
class Table:
    """What was measured. The defaults: processes on one machine of two cores, over its loopback.

    Args:
        whole: number of ranks -> bytes of an array up to which one round of whole arrays is fastest.
            Between two numbers of ranks, the larger one's. Two ranks always do so: it is as many bytes.
        ring_from: number of ranks from which on a ring is taken where there is one.
    """

    whole: Mapping[int, int] = field(default_factory=lambda: dict(_WHOLE))
    ring_from: int = RING_FROM

    def choose(self, operation: Operation, nbytes: int, ranks: int) -> Algorithm:
        """How `ranks` ranks do an operation on arrays of `nbytes` bytes."""
        if operation is Operation.ALL_REDUCE and nbytes <= self.whole_up_to(ranks):
            return Algorithm.WHOLE
        return Algorithm.RING if operation in RINGING and ranks >= self.ring_from else Algorithm.DIRECT

    def whole_up_to(self, ranks: int) -> int:
        """Bytes up to which an all-reduce takes one round."""
        above = [each for each in self.whole if each >= ranks]
        return self.whole[min(above)] if above else 0

    def large(self, ranks: int) -> Algorithm:
        """How a large all-reduce goes."""
        return Algorithm.RING if ranks >= self.ring_from else Algorithm.DIRECT

    def only(self, algorithm: str | None, *, deterministic: bool) -> Table:
        """This table for a group that asks for one algorithm, or for the same bits as everywhere.

        A deterministic group takes no ring, which adds each part in another order, and no hierarchy, which
        adds the ranks of a host first.
        """
        if algorithm == "hierarchical" and deterministic:
            raise ArgumentError("hosts that are added first give other bits: not with deterministic=True")
        if algorithm == Algorithm.RING:
            if deterministic:
                raise ArgumentError("a ring does not add in rank order: not with deterministic=True")
            return replace(self, whole={}, ring_from=2)
        return replace(self, ring_from=NEVER) if deterministic or algorithm == Algorithm.DIRECT else self

    @property
    def digest(self) -> str:
        """The same for equal tables only."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()[:16]

    def to_json(self) -> str:
        """As `from_json` reads it."""
        whole = {str(ranks): self.whole[ranks] for ranks in sorted(self.whole)}
        return json.dumps({"version": _VERSION, "whole": whole, "ring_from": self.ring_from}, indent=2)

    @classmethod
    def from_json(cls, text: str) -> Table:
        """Reads a table. ConfigurationError if it is none; it says what is wrong."""
        try:
            read = json.loads(text)
            if not isinstance(read, dict):
                raise ValueError("it is no object of JSON")
            if read.get("version") != _VERSION:
                raise ValueError(f"its version is {read.get('version')!r}, this program reads {_VERSION}")
            if unknown := read.keys() - {"version", "whole", "ring_from"}:
                raise ValueError(f"it has no {', '.join(map(repr, sorted(unknown)))}")
            if not isinstance(read.get("whole"), dict):
                raise ValueError("'whole' has to be an object: number of ranks -> bytes")
            whole = {
                _ranks(ranks, "'whole'"): _number(nbytes, f"'whole' of {ranks} ranks", 0)
                for ranks, nbytes in read["whole"].items()
            }
            return cls(whole, _number(read.get("ring_from"), "'ring_from'", 2))
        except ValueError as error:
            raise ConfigurationError(
                f"not a table of collectives: {error}; psf bench --tune makes one"
            ) from None


def _ranks(text: str, what: str) -> int:
    return _number(int(text) if text.isdecimal() else text, f"a number of ranks in {what}", 2)


def _number(value: object, what: str, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{what} is {value!r}, and not a whole number from {least} on")
    return value


Measured = Mapping[int, Mapping[int, Mapping[Algorithm, float]]]
"""Number of ranks -> bytes of an array -> algorithm -> seconds."""


def fit(measured: Measured) -> Table:
    """The table of what was fastest. For more ranks than were measured it is the default, or less."""
    whole = {ranks: _whole_up_to(ranks, sizes, Algorithm.DIRECT) for ranks, sizes in measured.items()}
    ring_from = _ring_from(measured, whole)
    for ranks in measured:
        if ranks >= ring_from:
            whole[ranks] = _whole_up_to(ranks, measured[ranks], Algorithm.RING)
    most = max(whole)
    beyond = {ranks: min(nbytes, whole[most]) for ranks, nbytes in _WHOLE.items() if ranks > most}
    return Table({2: _WHOLE[2], **whole, **beyond}, ring_from)


def _whole_up_to(ranks: int, sizes: Mapping[int, Mapping[Algorithm, float]], other: Algorithm) -> int:
    """The border to the other way that loses least time.

    Each size counts alike, so that one figure that is off does not move it.

    Two ranks go on beyond what was measured, since it is as many bytes; more ranks would send more.
    """
    best, border, gained = 0.0, 0, 0.0
    for nbytes in sorted(sizes):
        seconds = sizes[nbytes]
        gained += math.log(seconds[other] / seconds[Algorithm.WHOLE])
        if gained > best:
            best, border = gained, nbytes
    return ALWAYS if ranks == 2 and border == max(sizes) else border


def _ring_from(measured: Measured, whole: Mapping[int, int]) -> int:
    """The number of ranks from which on a ring was faster for what is not sent whole; two are no ring."""
    first = RING_FROM
    for ranks in sorted(measured, reverse=True):
        large = [seconds for nbytes, seconds in measured[ranks].items() if nbytes > whole[ranks]]
        gains = [math.log(each[Algorithm.DIRECT] / each[Algorithm.RING]) for each in large]
        if ranks == 2 or not gains or sum(gains) / len(gains) <= MARGIN:
            break
        first = ranks
    return first
