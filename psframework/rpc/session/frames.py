"""Frames as bytes: what may be in one, what it costs, and how a batch of them is written and read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from google.protobuf.message import DecodeError

from psframework.errors import WireError
from psframework.proto.v1.call_pb2 import Frame, FrameBatch, FrameKind, Hello, Identity, LinkState, Welcome
from psframework.proto.v1.call_pb2 import Lane as LaneNumber
from psframework.wire.codec import varint
from psframework.wire.lanes import Lane

REQUEST: Final = int(FrameKind.FRAME_KIND_REQUEST)
REPLY: Final = int(FrameKind.FRAME_KIND_REPLY)
CANCEL: Final = int(FrameKind.FRAME_KIND_CANCEL)
ABORT: Final = int(FrameKind.FRAME_KIND_ABORT)
RELEASE: Final = int(FrameKind.FRAME_KIND_RELEASE)
OPEN_STRIPES: Final = int(FrameKind.FRAME_KIND_OPEN_STRIPES)
GOODBYE: Final = int(FrameKind.FRAME_KIND_GOODBYE)
FREE: Final = int(FrameKind.FRAME_KIND_FREE)
UNSHARE: Final = int(FrameKind.FRAME_KIND_UNSHARE)
OFFER_DEVICE: Final = int(FrameKind.FRAME_KIND_OFFER_DEVICE)
ANSWER_DEVICE: Final = int(FrameKind.FRAME_KIND_ANSWER_DEVICE)

NO_LANE: Final = int(LaneNumber.LANE_UNSPECIFIED)
INLINE: Final = int(LaneNumber.LANE_INLINE)
STRIPED: Final = int(LaneNumber.LANE_STRIPED)
SHM: Final = int(LaneNumber.LANE_SHM)
DEVICE: Final = int(LaneNumber.LANE_DEVICE)
PLACED: Final = (SHM, DEVICE)
"""Lanes whose payloads lie in memory of the sender until the receiver says that it needs them no more."""

NUMBERS: Final = {Lane.INLINE: LaneNumber.LANE_INLINE, Lane.STRIPED: LaneNumber.LANE_STRIPED,
                  Lane.SHM: LaneNumber.LANE_SHM, Lane.DEVICE: LaneNumber.LANE_DEVICE}  # fmt: skip
LANES: Final = {int(number): lane for lane, number in NUMBERS.items()}

PROTOCOL: Final = 1
MAX_MESSAGE: Final = 64 << 20
"""Largest message of the call stream in bytes; a payload above 64 KiB takes another lane if there is one."""

MAX_HEADER: Final = MAX_MESSAGE // 2
"""Largest request or response message without its payload, in bytes."""

MAX_PARTS: Final = 65_536
FRAME_COST: Final = 128
"""What a call without payload costs of the window, in bytes: about what it holds in memory."""

_FRAMES_TAG: Final = bytes([FrameBatch.FRAMES_FIELD_NUMBER << 3 | 2])


def encode_frame(frame: Frame) -> bytes:
    """The frame as an element of FrameBatch.frames, ready to be joined with others."""
    data = frame.SerializeToString()
    return _FRAMES_TAG + varint(len(data)) + data


def encode_batch(
    first: int, report: tuple[int, int, int], frames: Sequence[bytes], *, moves: bool = False
) -> bytes:
    """One message of the call stream, from encoded frames and what `Session.report` said."""
    received, requests, replies = report
    head = FrameBatch(
        first=first, acknowledged=received, consumed=requests, consumed_replies=replies, moves=moves
    )
    return b"".join((head.SerializeToString(), *frames))


def decode_batch(data: bytes) -> FrameBatch:
    """Reads a message of the call stream; WireError if it is none."""
    try:
        return FrameBatch.FromString(data)
    except DecodeError as error:
        raise WireError(f"not a batch of frames: {error}") from None


def cost(header: bytes, lane: int, sizes: Sequence[int]) -> int:
    """Bytes of the window that a request or a reply takes; both ends must agree on it."""
    if lane == NO_LANE or lane in PLACED:
        return FRAME_COST + len(header)
    return FRAME_COST + len(header) + sum(sizes)


def check_payload(frame: Frame, lanes: frozenset[Lane], max_bytes: int) -> None:
    """Checks the fields of a payload against each other and against what was agreed.

    Raises:
        WireError: the frame can't be right; nothing was allocated for it.
    """
    lane = frame.lane
    if lane == NO_LANE:
        if frame.sizes or frame.parts or frame.offsets:
            raise WireError("a payload without a lane")
        return
    if LANES.get(lane) not in lanes:
        raise WireError(f"lane {lane} was not negotiated")
    count = len(frame.sizes)
    if count > MAX_PARTS or (total := sum(frame.sizes)) > max_bytes:
        size = "" if count > MAX_PARTS else f", {total} bytes"
        raise WireError(f"a payload of {count} parts{size}: at most {MAX_PARTS} and {max_bytes} bytes fit")
    if lane == INLINE and [len(part) for part in frame.parts] != list(frame.sizes):
        raise WireError("inline parts do not have the sizes that were announced")
    if lane in PLACED and len(frame.offsets) != count:
        raise WireError("shared parts and their offsets differ in number")


__all__ = ["Frame", "FrameBatch", "Hello", "Identity", "LinkState", "Welcome"]
