"""The caller's books: every call ends once, and what the other side says is checked."""

from typing import Any

import pytest
from google.protobuf.wrappers_pb2 import StringValue

from psframework.errors import PeerLost, RemoteError, WireError
from psframework.rpc.deadline import Deadline
from psframework.rpc.session import frames
from psframework.rpc.session.bulk import Bulk
from psframework.rpc.session.calls import Calls, Pending
from psframework.rpc.session.frames import Frame
from psframework.rpc.session.payload import NOTHING, Sender
from psframework.rpc.session.segments import Segments
from psframework.rpc.session.session import Session
from psframework.rpc.session.stream import Port
from psframework.rpc.status import error_to_detail
from psframework.wire.lanes import Lane
from psframework.wire.memory import BufferPool


class Bench:
    def __init__(self) -> None:
        self.port = Port(Session(1 << 20))
        self.port.agreed = frozenset(Lane)
        segments = Segments(0)
        self.bulk = Bulk(lambda key: True, 1 << 20, BufferPool())
        sender = Sender(self.port, segments, BufferPool())
        self.calls = Calls(self.port, self.bulk, segments, sender, peer="there", max_payload=1 << 20)

    def start(self, deadline: Deadline = Deadline.NEVER) -> Pending:
        pending = Pending("/a/b", StringValue, NOTHING, None)
        self.calls.start(pending, b"", deadline)
        return pending

    def reply(self, **fields: Any) -> None:
        self.calls.reply(Frame(kind=frames.REPLY, **fields))

    def sent(self) -> list[int]:
        return [frames.decode_batch(data).frames[0].kind for data in self.port.session.take()[1]]


async def test_a_reply_ends_its_call() -> None:
    bench = Bench()
    first, second = bench.start(), bench.start()
    bench.reply(call=2, header=StringValue(value="x").SerializeToString())
    assert second.future.result() == (StringValue(value="x"), [])
    assert not first.future.done() and len(bench.calls) == 1
    bench.reply(call=1, error=error_to_detail(ValueError("no")))
    with pytest.raises(RemoteError, match="no"):
        first.future.result()


async def test_a_reply_to_nothing_breaks_the_protocol() -> None:
    bench = Bench()
    with pytest.raises(WireError):
        bench.reply(call=1)
    bench.start()
    bench.reply(call=1)
    with pytest.raises(WireError, match="answered"):
        bench.reply(call=1)


@pytest.mark.parametrize(
    "fields",
    [
        {"header": b"\xff"},
        {"lane": frames.INLINE, "sizes": [5], "parts": [b"a"]},
        {"lane": frames.SHM, "sizes": [5], "offsets": [0], "segment": 3},
        {"lane": frames.STRIPED, "sizes": [1 << 40]},
        {"lane": frames.DEVICE, "sizes": [5], "offsets": [0], "segment": 3},
        {"lane": 5, "sizes": [1]},
    ],
)
async def test_a_wrong_reply_fails_only_its_call(fields: dict[str, Any]) -> None:
    bench = Bench()
    pending = bench.start()
    bench.reply(call=1, **fields)
    with pytest.raises(WireError, match="there answered /a/b wrongly"):
        pending.future.result()
    assert len(bench.calls) == 0 and bench.bulk.is_idle


async def test_a_cancelled_call_is_kept_until_its_reply() -> None:
    bench = Bench()
    pending = bench.start()
    bench.calls.cancel(pending)
    assert len(bench.calls) == 1 and pending.future.cancelled()
    assert bench.sent() == [frames.REQUEST, frames.CANCEL]
    bench.reply(call=1, lane=frames.STRIPED, sizes=[100])
    assert len(bench.calls) == 0 and bench.bulk.is_idle
    assert bench.sent() == [frames.RELEASE]
    bench.calls.abort(Frame(call=1))  # crossed on the way: nothing happens


async def test_a_lost_peer_says_what_may_have_run() -> None:
    bench = Bench()
    on_the_way = bench.start()
    bench.port.session.take()
    never_sent = bench.start()
    bench.calls.fail("lease", "there was declared dead")
    with pytest.raises(PeerLost) as caught:
        on_the_way.future.result()
    assert caught.value.may_have_run and caught.value.reason == "lease" and caught.value.peer == "there"
    with pytest.raises(PeerLost) as caught:
        never_sent.future.result()
    assert not caught.value.may_have_run


async def test_an_aborted_payload_fails_the_call() -> None:
    bench = Bench()
    pending = bench.start()
    bench.reply(call=1, lane=frames.STRIPED, sizes=[100])
    bench.calls.abort(Frame(call=1, error=error_to_detail(KeyError("part"))))
    with pytest.raises(KeyError):
        pending.future.result()
    assert bench.bulk.is_idle
