"""Choosing a lane, and writing the choice into a frame."""

import numpy as np
import pytest

from psframework.errors import ArgumentError
from psframework.rpc.session import frames
from psframework.rpc.session.frames import Frame
from psframework.rpc.session.payload import Outgoing, Sender, byte_views, part_views
from psframework.rpc.session.segments import Segments
from psframework.rpc.session.session import Session
from psframework.rpc.session.stream import Port
from psframework.testing.strict_device import strict_devices
from psframework.wire.device_bytes import DEVICE_BYTES, DeviceBytes
from psframework.wire.lanes import Lane
from psframework.wire.memory import BufferPool


def sender(*lanes: Lane) -> tuple[Sender, Port]:
    port = Port(Session())
    port.lanes = frozenset({Lane.INLINE, *lanes})
    return Sender(port, Segments(0), BufferPool()), port


async def test_small_payloads_stay_in_the_frame_and_large_ones_are_striped() -> None:
    choose, port = sender(Lane.STRIPED, Lane.SHM)
    small = await choose.choose(byte_views([b"abc", b""]))
    large = await choose.choose(byte_views([bytes(100_000)]))
    assert (small.lane, large.lane) == (frames.INLINE, frames.STRIPED)
    choose.count(small)
    choose.count(large)
    assert (port.stats.sent[Lane.INLINE].nbytes, port.stats.sent[Lane.STRIPED].nbytes) == (3, 100_000)


async def test_inline_alone_has_a_limit() -> None:
    choose, _ = sender()
    assert (await choose.choose(byte_views([bytes(1 << 20)]))).lane == frames.INLINE
    with pytest.raises(ArgumentError, match="striped"):
        choose.choose_now([memoryview(bytes(frames.MAX_MESSAGE))])


def test_a_frame_says_where_its_payload_is() -> None:
    frame = Frame()
    Outgoing(frames.INLINE, [1, 2], [b"a", memoryview(b"bc")]).fill(frame)
    assert list(frame.parts) == [b"a", b"bc"] and list(frame.sizes) == [1, 2]
    frame = Frame()
    Outgoing(frames.SHM, [1, 2], segment=4, offsets=[0, 64]).fill(frame)
    assert (frame.lane, frame.segment, list(frame.offsets), list(frame.parts)) == (3, 4, [0, 64], [])


def test_memory_is_given_back_once() -> None:
    freed: list[int] = []
    payload = Outgoing(frames.SHM, [1], segment=1, offsets=[0], release=lambda: freed.append(1))
    payload.free()
    payload.free()
    assert freed == [1]


def test_views_are_bytes_whatever_the_buffer_holds() -> None:
    shorts = memoryview(bytearray(8)).cast("H")
    assert [len(view) for view in byte_views([shorts, memoryview(bytearray(0)).cast("H"), b"x"])] == [8, 0, 1]
    with pytest.raises(ArgumentError, match="part 1"):
        byte_views([b"", memoryview(b"abcd")[::2]])


async def test_arrays_on_a_device_take_the_lanes_of_the_host_where_they_must() -> None:
    with strict_devices("gpu-0") as (gpu,):
        host = np.arange(DEVICE_BYTES // 8, dtype=np.float64)
        part = DeviceBytes(gpu.to_device(host))
        assert part_views([part, b"x"])[0] is part and byte_views([part])[0] == host.tobytes()
        for lanes in [(Lane.STRIPED,), (Lane.STRIPED, Lane.SHM), (Lane.STRIPED, Lane.SHM, Lane.DEVICE)]:
            choose, _ = sender(*lanes)
            for payload in (await choose.choose([part, memoryview(b"x")]), choose.copy([part])):
                assert payload.lane == frames.STRIPED and payload.parts is not None
                assert bytes(payload.parts[0]) == host.tobytes()
