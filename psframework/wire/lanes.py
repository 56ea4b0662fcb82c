"""Lanes: the ways a payload may travel, how two ends agree on them, and which one a payload takes."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from psframework.errors import ConfigurationError
from psframework.wire import shm

INLINE_BYTES: Final = 64 * 1024
"""Payloads up to this many bytes travel in the call stream itself."""

STRIPES: Final = 4
"""Streams of the striped lane; more of them were not faster on one channel."""


class Lane(Enum):
    """One way for a payload to travel; the value is its name in flags and in the handshake."""

    INLINE = "inline"
    """In the frame of its call; every pair of peers can."""
    STRIPED = "striped"
    """In chunks over several streams of their own."""
    SHM = "shm"
    """In a segment that both ends have mapped: only its place travels."""
    DEVICE = "device"
    """Arrays of a GPU, in memory of it that both ends have opened; only between ends that have SHM."""


def available() -> frozenset[Lane]:
    """The lanes that this machine can offer."""
    return frozenset(Lane) if shm.available() else frozenset({Lane.INLINE, Lane.STRIPED})


def parse(text: str) -> frozenset[Lane]:
    """Lanes of a flag such as "inline,striped". Inline is always among them.

    Raises:
        ConfigurationError: a name that is no lane, or a lane that this machine does not have.
    """
    names = [name.strip().lower() for name in text.split(",") if name.strip()]
    known = {lane.value: lane for lane in Lane}
    unknown = [name for name in names if name not in known]
    if unknown or not names:
        raise ConfigurationError(f"lanes {text!r}: name some of {', '.join(known)}, separated by commas")
    lanes = frozenset(known[name] for name in names)
    if missing := lanes - available():
        raise ConfigurationError(
            f"lanes {text!r}: this machine has no {' or '.join(x.value for x in missing)}"
        )
    return lanes | {Lane.INLINE}


def offered(text: str | None = None, environment: Mapping[str, str] = os.environ) -> frozenset[Lane]:
    """The lanes to offer: `text` (a flag), else PSF_LANES, else all that this machine has."""
    chosen = text or environment.get("PSF_LANES")
    return parse(chosen) if chosen else available()


def sockets_wanted(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether sessions may use TCP sockets of their own beside gRPC: yes, unless PSF_SOCKETS is 0.

    Raises:
        ConfigurationError: it is something else.
    """
    text = environment.get("PSF_SOCKETS") or "1"
    if text not in ("0", "1"):
        raise ConfigurationError(f"PSF_SOCKETS={text!r}: 1, or 0 to leave everything to gRPC")
    return text == "1"


def choose(sizes: Sequence[int], lanes: frozenset[Lane], in_segment: bool = False) -> Lane:
    """The lane for a payload of parts of these sizes.

    Args:
        sizes: bytes of each part.
        lanes: what both ends agreed on.
        in_segment: whether the payload already lies in a segment shared with this peer.
    """
    if in_segment and Lane.SHM in lanes:
        return Lane.SHM
    if Lane.STRIPED not in lanes or sum(sizes) <= INLINE_BYTES:
        return Lane.INLINE
    return Lane.STRIPED


@dataclass(slots=True)
class Traffic:
    """What went one way over one lane.

    Attributes:
        messages: payloads.
        nbytes: their bytes, without headers.
    """

    messages: int = 0
    nbytes: int = 0


@dataclass(slots=True)
class LaneStats:
    """Traffic of one peer, or of all, by lane.

    Attributes:
        sent: by lane, what left this process.
        received: by lane, what came in.
    """

    sent: dict[Lane, Traffic] = field(default_factory=lambda: {lane: Traffic() for lane in Lane})
    received: dict[Lane, Traffic] = field(default_factory=lambda: {lane: Traffic() for lane in Lane})

    def add_sent(self, lane: Lane, nbytes: int, messages: int = 1) -> None:
        """Counts a payload that left."""
        _count(self.sent[lane], nbytes, messages)

    def add_received(self, lane: Lane, nbytes: int, messages: int = 1) -> None:
        """Counts a payload that came in."""
        _count(self.received[lane], nbytes, messages)

    def merge(self, other: LaneStats) -> None:
        """Adds the traffic of `other` to this one."""
        for lane in Lane:
            self.add_sent(lane, other.sent[lane].nbytes, other.sent[lane].messages)
            self.add_received(lane, other.received[lane].nbytes, other.received[lane].messages)


def _count(traffic: Traffic, nbytes: int, messages: int) -> None:
    traffic.messages += messages
    traffic.nbytes += nbytes
