"""Arrays on a device, between two real processes: through its memory, or by way of the host."""

import asyncio
import gc
import os
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import device_things
import numpy as np
import pytest
from crew import Crew, until

from psframework import backend
from psframework.errors import PeerLost, ResourceExhausted, WireError
from psframework.proto.v1.call_pb2 import DeviceOffer
from psframework.rpc.functions.routes import Address
from psframework.rpc.limits import AgentOptions
from psframework.rpc.session import devices, frames
from psframework.rpc.session.devices import MAX_OPENED, DeviceSegments
from psframework.rpc.session.frames import Frame
from psframework.testing.faults import FaultyLink
from psframework.testing.strict_device import StrictDevice, strict_devices
from psframework.testing.strict_ipc import StrictIpc, StrictMemory
from psframework.testing.workers import Worker
from psframework.wire import shm
from psframework.wire.device_bytes import DEVICE_BYTES, DeviceBytes
from psframework.wire.lanes import Lane, parse

pytestmark = pytest.mark.skipif(not shm.available(), reason="shared segments need Linux")
MIB = 1 << 20
HOST = (Lane.INLINE, Lane.STRIPED, Lane.SHM)


@pytest.fixture
def gpu() -> Any:
    with strict_devices("gpu-0") as (device,):
        yield device


@pytest.fixture
async def crew() -> AsyncIterator[Crew]:
    async with AsyncExitStack() as stack:
        yield Crew(stack)


async def call(ann: Worker, function: Any, *args: Any, to: str = "bob") -> Any:
    return await ann.remote.rpc_async(to, function, args, timeout=30)


def numbers(gpu: StrictDevice, nbytes: int) -> Any:
    return gpu.to_device(np.arange(nbytes // 4, dtype=np.float32).reshape(-1, 64))


def memory_of(ann: Worker, to: str = "bob") -> DeviceSegments:
    peer = ann.agent.peer_for(to)
    assert peer is not None
    return peer.segments.devices


async def opened(ann: Worker, gpu: StrictDevice, nbytes: int = MIB, to: str = "bob") -> Any:
    """The peer, once both ends have opened device memory of each other."""
    async with asyncio.timeout(20):
        while True:
            await call(ann, device_things.echo, numbers(gpu, nbytes), to=to)
            peer = ann.agent.peer_for(to)
            assert peer is not None
            if peer.stats.sent[Lane.DEVICE].messages and peer.stats.received[Lane.DEVICE].messages:
                return peer


async def test_no_byte_of_an_array_passes_through_the_host(crew: Crew, gpu: StrictDevice) -> None:
    ann = await crew.hire("ann")
    await crew.process("bob", "gpu-0", script="device_things.py")
    peer = await opened(ann, gpu)
    x = numbers(gpu, 4 * MIB)
    theirs, their_fetches = await call(ann, device_things.facts, "ann")
    ours, our_fetches = device_things.traffic(peer.stats), gpu.synchronisations

    found = await call(ann, device_things.double_in_place, x)

    assert gpu.synchronisations == our_fetches
    assert backend.device_of(found) == gpu.device and found.shape == x.shape and found.dtype == x.dtype
    found += 1  # it is ours to change
    np.testing.assert_array_equal(backend.asnumpy(found), backend.asnumpy(x) * 2 + 1)
    np.testing.assert_array_equal(x.host.reshape(-1)[:3], [0, 1, 2], "and so was what bob had")
    now, now_fetches = await call(ann, device_things.facts, "ann")
    assert now_fetches == their_fetches
    for before, after in ((theirs, now), (ours, device_things.traffic(peer.stats))):
        moved = {lane: after[lane] - before[lane] for lane in after}
        assert moved == {"inline": 0, "striped": 0, "shm": 0, "device": 2 * x.nbytes}
    await until(lambda: all(arena.is_idle for _, arena in memory_of(ann)._arenas))


async def test_what_goes_along_and_what_is_small(crew: Crew, gpu: StrictDevice) -> None:
    ann = await crew.hire("ann")
    await crew.process("bob", "gpu-0", script="device_things.py")
    peer = await opened(ann, gpu)
    sent = peer.stats.sent[Lane.DEVICE]
    before = sent.messages
    x, labels = gpu.to_device(np.ones(MIB, np.float32)), np.full(4096, 2.0)
    assert await call(ann, device_things.add_up, x, labels) == (MIB, 8192.0, "ndarray")
    assert sent.messages == before + 1, "a few labels of the host travel with the batch"
    assert await call(ann, device_things.add_up, x, np.full(MIB, 2.0)) == (MIB, 2.0 * MIB, "ndarray")
    assert sent.messages == before + 1, "much of the host's does not go to the device and back"
    small = numbers(gpu, DEVICE_BYTES // 2)
    assert await call(ann, device_things.where, small) == "gpu-0"
    assert sent.messages == before + 1, "small arrays take the lanes of the host"
    assert await call(ann, device_things.where, x.astype(np.float64)[::2]) == "gpu-0"
    assert sent.messages == before + 2, "strides are no hindrance"


async def test_arguments_may_change_as_soon_as_the_call_was_made(crew: Crew, gpu: StrictDevice) -> None:
    ann = await crew.hire("ann")
    await crew.process("bob", "gpu-0", script="device_things.py")
    x = gpu.to_device(np.ones(MIB, np.float32))
    for _ in range(2):  # by way of the host, and through the device
        calls = []
        for _ in range(4):
            calls.append(ann.remote.rpc_async("bob", device_things.add_up, (x, np.zeros(1)), timeout=30))
            x *= 3
        sums = [(await each)[0] for each in calls]
        assert sums == [sums[0] * 3**n for n in range(4)]
        peer = await opened(ann, gpu)
    assert peer.stats.sent[Lane.DEVICE].messages >= 4


async def test_a_call_that_was_given_up_keeps_its_memory_until_the_other_end_is_done(
    crew: Crew, gpu: StrictDevice
) -> None:
    ann = await crew.hire("ann")
    bob = await crew.process("bob", "gpu-0", script="device_things.py")
    await opened(ann, gpu)
    arenas = memory_of(ann)._arenas
    await until(lambda: all(arena.is_idle for _, arena in arenas))
    bob.send_signal(signal.SIGSTOP)
    given_up = ann.remote.rpc_async("bob", device_things.echo, (numbers(gpu, MIB),), timeout=30)
    given_up.cancel()
    await asyncio.wait([given_up])
    assert not all(arena.is_idle for _, arena in arenas), "bob may read it yet"
    bob.send_signal(signal.SIGCONT)
    await until(lambda: all(arena.is_idle for _, arena in arenas))


async def test_a_broken_connection_loses_nothing(crew: Crew, gpu: StrictDevice) -> None:
    ann = await crew.hire("ann")
    await crew.process("bob", "gpu-0", script="device_things.py")
    bob = crew.book.known["bob"]
    async with FaultyLink(bob.addresses[0]) as link:
        crew.book.known["bob"] = Address([link.address], "worker", bob.incarnation)
        peer = await opened(ann, gpu)
        before = peer.stats.sent[Lane.DEVICE].messages
        calls = []
        for n in range(40):
            x = gpu.to_device(np.full(MIB // 4, n, np.float32))
            calls.append(ann.remote.rpc_async("bob", device_things.double_in_place, (x,), timeout=30))
            if n % 10 == 5:
                link.cut()
            await asyncio.sleep(0.001)
        for n, found in enumerate(await asyncio.gather(*calls)):
            assert (found.host == 2 * n).all()
        assert peer.stats.sent[Lane.DEVICE].messages > before
        await until(lambda: all(arena.is_idle for _, arena in memory_of(ann)._arenas))


async def test_items_of_a_stream_arrive_on_the_device(crew: Crew, gpu: StrictDevice) -> None:
    ann = await crew.hire("ann")
    await crew.process("bob", "gpu-0", script="device_things.py")
    await opened(ann, gpu)
    x = numbers(gpu, 2 * MIB)
    items = [item async for item in ann.remote.rpc_stream("bob", device_things.times, (x, 3))]
    assert [float(item.sum()) for item in items] == [n * float(x.sum()) for n in range(3)]
    assert {backend.device_of(item) for item in items} == {gpu.device}


async def test_a_killed_peer_leaves_no_memory(crew: Crew, gpu: StrictDevice) -> None:
    ann = await crew.hire("ann")
    gc.collect()
    before = open_memory()
    bob = await crew.process("bob", "gpu-0", script="device_things.py")
    await opened(ann, gpu)
    assert len(open_memory()) > len(before)
    bob.send_signal(signal.SIGSTOP)
    calls = [ann.remote.rpc_async("bob", device_things.echo, (numbers(gpu, MIB),), timeout=30) for _ in "abc"]
    bob.kill()
    for each in calls:
        with pytest.raises(PeerLost):
            await each
    await until(lambda: open_memory() == before)


def open_memory() -> list[str]:
    """The strict device's memory that this process has open."""
    found = []
    for each in Path("/proc/self/fd").iterdir():
        try:
            found.append(os.readlink(each))
        except OSError:
            continue  # the directory's own
    return sorted(name for name in found if "memfd:gpu-0" in name)


@pytest.mark.parametrize(
    ("theirs", "options"),
    [
        ("gpu-1", {}),
        ("gpu-0", {"lanes": parse("inline,striped,shm")}),
        ("gpu-0", {"lanes": parse("inline,striped,device")}),
        ("gpu-0", {"device_bytes": 0}),
        ("gpu-0", {"device_bytes": MIB}),
    ],
    ids=["no such device there", "lane not offered", "another host", "no memory", "too little memory"],
)
async def test_without_the_lane_arrays_go_by_way_of_the_host(
    crew: Crew, gpu: StrictDevice, theirs: str, options: dict[str, Any]
) -> None:
    ann = await crew.hire("ann", options=AgentOptions(**options))
    await crew.process("bob", theirs, script="device_things.py")
    x = numbers(gpu, 2 * MIB)
    for _ in range(3):
        found = await call(ann, device_things.echo, x)
        np.testing.assert_array_equal(backend.asnumpy(found), x.host)
    peer = ann.agent.peer_for("bob")
    assert peer is not None
    assert peer.stats.sent[Lane.DEVICE].messages == 0
    assert sum(peer.stats.sent[lane].nbytes for lane in HOST) >= 3 * x.nbytes
    assert not memory_of(ann)._arenas


async def test_two_members_of_one_process(crew: Crew, gpu: StrictDevice) -> None:
    """CUDA opens no handle in the process that made it: their arrays go by way of the host."""
    ann = await crew.hire("ann")
    await crew.hire("bob")
    for to in ("bob", "ann"):
        for _ in range(2):
            found = await call(ann, device_things.echo, numbers(gpu, MIB), to=to)
            assert backend.device_of(found) == gpu.device
    await until(lambda: memory_of(ann)._budget == 0)
    peer = ann.agent.peer_for("bob")
    assert peer is not None and peer.stats.sent[Lane.DEVICE].messages == 0


# One end alone: what a hostile or broken other end may say


class End:
    """Memory on devices of one session, whose other end is the test."""

    def __init__(self, budget: int = 256 * MIB) -> None:
        self.posted: list[Frame] = []
        self.tasks: list[asyncio.Task[None]] = []
        self.memory = DeviceSegments(budget)
        self.memory.bind(self.posted.append, lambda work: self.tasks.append(asyncio.ensure_future(work)))

    async def settle(self) -> None:
        await asyncio.gather(*self.tasks)

    async def offer(self, header: bytes, number: int = 1) -> Frame:
        self.memory.offered(Frame(kind=frames.OFFER_DEVICE, segment=number, header=header))  # type: ignore[arg-type]
        await self.settle()
        return self.posted[-1]


@pytest.mark.parametrize(
    "offer",
    [
        b"\xff",
        b"",
        DeviceOffer(kind="gpu-0", address="gpu-0", handle=b"x" * 64, nbytes=MIB).SerializeToString(),
        DeviceOffer(kind="cpu", address="", handle=b"x" * 64, nbytes=MIB).SerializeToString(),
        DeviceOffer(kind="cuda", address="0000:00:00.0", handle=b"x" * 64, nbytes=MIB).SerializeToString(),
    ],
)
async def test_what_can_not_be_opened_is_refused(gpu: StrictDevice, offer: bytes) -> None:
    end = End()
    answer = await end.offer(offer)
    assert answer.kind == frames.ANSWER_DEVICE and answer.HasField("error")
    with pytest.raises(WireError, match="no device memory 1"):
        end.memory.parts(Frame(segment=1, offsets=[0], sizes=[1]))
    end.memory.close()


async def lent(gpu: StrictDevice, monkeypatch: pytest.MonkeyPatch, nbytes: int = 4096) -> tuple[End, bytes]:
    """An end that has opened memory of another process; the offer of it."""
    memory = StrictIpc(gpu).allocate(0, nbytes)
    memory.write(0, np.frombuffer(b"p" * devices.PROOF_BYTES, np.uint8))

    def from_elsewhere(kind: str, address: str, handle: bytes, nbytes: int) -> StrictMemory:
        return StrictMemory(gpu, os.dup(memory._fd), nbytes)  # type: ignore[attr-defined]

    monkeypatch.setattr(backend, "open_shared", from_elsewhere)
    offer = DeviceOffer(kind="gpu-0", address="gpu-0", nbytes=nbytes, proof=b"p" * devices.PROOF_BYTES)
    end = End()
    answer = await end.offer(offer.SerializeToString())
    assert answer.segment == 1 and not answer.HasField("error")
    memory.close()
    return end, offer.SerializeToString()


@pytest.mark.parametrize(
    ("segment", "offset", "size"),
    [(2, 0, 8), (1, 4096, 1), (1, 0, 4097), (1, (1 << 64) - 8, 16), (1, 1, (1 << 64) - 1), (0, 0, 8)],
)
async def test_parts_that_are_nowhere(
    gpu: StrictDevice, monkeypatch: pytest.MonkeyPatch, segment: int, offset: int, size: int
) -> None:
    end, _ = await lent(gpu, monkeypatch)
    with pytest.raises(WireError, match="device memory"):
        end.memory.parts(Frame(segment=segment, offsets=[offset], sizes=[size]))
    (part,) = end.memory.parts(Frame(segment=1, offsets=[0], sizes=[devices.PROOF_BYTES]))
    assert bytes(part) == b"p" * devices.PROOF_BYTES
    end.memory.close()


async def test_offers_without_end(gpu: StrictDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    end, offer = await lent(gpu, monkeypatch)
    with pytest.raises(WireError, match="offered before"):
        await end.offer(offer)
    for number in range(2, MAX_OPENED + 1):
        await end.offer(b"", number)
    with pytest.raises(WireError, match="are open"):
        await end.offer(offer, MAX_OPENED + 1)
    end.memory.close()
    assert not open_memory()


async def test_the_right_bytes_must_be_at_the_beginning(
    gpu: StrictDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    end, offer = await lent(gpu, monkeypatch)
    wrong = DeviceOffer.FromString(offer)
    wrong.proof = b"q" * devices.PROOF_BYTES
    monkeypatch.setattr(
        backend, "open_shared", lambda *_: end.memory._opened[1]
    )  # another memory than was meant
    answer = await end.offer(wrong.SerializeToString(), 2)
    assert "not what was offered" in answer.error.message
    end.memory.close()


async def test_a_full_device_fails_the_call_and_not_the_session(
    gpu: StrictDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    end, _ = await lent(gpu, monkeypatch)

    def full(*_: Any) -> Any:
        raise MemoryError("out of memory")

    monkeypatch.setattr(StrictMemory, "read", full)
    with pytest.raises(ResourceExhausted, match="out of memory"):
        end.memory.parts(Frame(segment=1, offsets=[0], sizes=[8]))
    end.memory.close()


async def test_memory_grows_with_what_is_sent_up_to_its_budget(gpu: StrictDevice) -> None:
    end = End(budget=160 * MIB)
    part = DeviceBytes(numbers(gpu, MIB))

    async def place(count: int) -> Any:
        placed = end.memory.place([part] * count, [MIB] * count)
        if placed is None and not all(task.done() for task in end.tasks):
            await until(lambda: end.posted)
            end.memory.answered(Frame(segment=end.posted.pop().segment))
            await end.settle()
            return end.memory.place([part] * count, [MIB] * count)
        return placed

    def sizes() -> list[int]:
        return [arena.segment.nbytes // MIB for _, arena in end.memory._arenas]

    small, large = await place(1), await place(80)
    assert end.memory.place([part, memoryview(b""), memoryview(b"x")], [MIB, 0, 1]) is not None
    assert small is not None and large is not None and sizes() == [64, 96], "the second is all that is left"
    assert await place(80) is None and sizes() == [64, 96], "no more than the budget"
    assert (await place(60)).segment == small.segment
    large.free()
    assert (await place(80)).segment == large.segment
    end.memory.answered(Frame(segment=77))  # nobody asked
    end.memory.close()
    assert not open_memory()


async def test_a_driver_that_fails_ends_the_lane(gpu: StrictDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    end = End()
    part = DeviceBytes(numbers(gpu, MIB))
    assert end.memory.place([part], [MIB]) is None
    await until(lambda: end.posted)
    end.memory.answered(Frame(segment=1))
    await end.settle()

    def broken(*_: Any) -> None:
        raise RuntimeError("cudaErrorUnknown")

    with monkeypatch.context() as patch:
        patch.setattr(StrictMemory, "write", broken)
        assert end.memory.place([part], [MIB]) is None
    assert all(arena.is_idle for _, arena in end.memory._arenas) and end.memory._room() < 0
    end.memory.close()
