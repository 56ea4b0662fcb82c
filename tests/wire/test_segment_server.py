from psframework.wire import handover
from psframework.wire.segment_server import SegmentServer
from psframework.wire.shm import Segment


async def test_roundtrip(tmp_path):
    got = []
    async with SegmentServer(tmp_path / "s") as server:
        server.on_segment = lambda key, number, segment: got.append((key, number, segment))
        key = handover.new_key()
        server.expect(key)
        with Segment.create(1 << 20) as mine:
            mine.buffer[:3] = b"abc"
            await handover.offer_segment(server.path, key, 7, mine)
            assert got[0][:2] == (key, 7)
            assert got[0][2].read(0, 3) == b"abc"
