"""Frames as bytes are valid protobuf, and what can't be right is a WireError."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from psframework.errors import WireError
from psframework.rpc.session import frames
from psframework.rpc.session.frames import Frame, FrameBatch
from psframework.wire.lanes import Lane

ALL = frozenset(Lane)


@given(st.lists(st.binary(max_size=300), max_size=5), st.integers(0, 2**60))
def test_a_batch_is_what_protobuf_itself_writes(headers: list[bytes], number: int) -> None:
    made = [Frame(kind=frames.REQUEST, call=index + 1, header=data) for index, data in enumerate(headers)]  # type: ignore[arg-type]
    data = frames.encode_batch(number, (7, 9, 11), [frames.encode_frame(frame) for frame in made])
    assert frames.decode_batch(data) == FrameBatch(
        first=number, acknowledged=7, consumed=9, consumed_replies=11, frames=made
    )


def test_a_large_frame_too() -> None:
    frame = Frame(call=1, header=bytes(3 << 20))
    assert (
        frames.decode_batch(frames.encode_batch(1, (0, 0, 0), [frames.encode_frame(frame)])).frames[0]
        == frame
    )


@given(st.binary(max_size=200))
def test_random_bytes_are_a_batch_or_a_wire_error(data: bytes) -> None:
    try:
        frames.decode_batch(data)
    except WireError:
        pass


@pytest.mark.parametrize(
    ("frame", "words"),
    [
        (Frame(sizes=[1]), "without a lane"),
        (Frame(lane=77, sizes=[1]), "not negotiated"),
        (Frame(lane=frames.STRIPED, sizes=[10 << 30]), "at most"),
        (Frame(lane=frames.STRIPED, sizes=[1] * (frames.MAX_PARTS + 1)), "parts"),
        (Frame(lane=frames.INLINE, sizes=[3], parts=[b"ab"]), "announced"),
        (Frame(lane=frames.INLINE, sizes=[3, 1], parts=[b"abc"]), "announced"),
        (Frame(lane=frames.SHM, sizes=[3, 1], offsets=[0]), "offsets"),
        (Frame(lane=frames.DEVICE, sizes=[3], offsets=[0, 1]), "offsets"),
    ],
)
def test_a_payload_that_can_not_be_right(frame: Frame, words: str) -> None:
    with pytest.raises(WireError, match=words):
        frames.check_payload(frame, ALL, 1 << 30)


def test_a_lane_that_was_not_agreed_on_is_refused() -> None:
    with pytest.raises(WireError, match="not negotiated"):
        frames.check_payload(Frame(lane=frames.SHM, sizes=[1], offsets=[0]), frozenset({Lane.INLINE}), 10)


def test_only_what_is_in_flight_costs() -> None:
    assert frames.cost(b"abc", frames.NO_LANE, ()) == frames.FRAME_COST + 3
    assert frames.cost(b"", frames.STRIPED, [5, 6]) == frames.FRAME_COST + 11
    assert frames.cost(b"", frames.SHM, [5, 6]) == frames.cost(b"", frames.DEVICE, [5]) == frames.FRAME_COST
