"""CUDA IPC between two real processes: memory by itself, and arrays of remote calls."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import device_things
import numpy as np
import pytest
from crew import Crew

from psframework import backend
from psframework.errors import WireError
from psframework.wire.lanes import Lane

pytestmark = pytest.mark.gpu
MIB = 1 << 20
OPENER = """
import sys
from psframework import backend
memory = backend.open_shared("cuda", sys.argv[1], bytes.fromhex(sys.argv[2]), int(sys.argv[3]))
print(backend.asnumpy(memory.read(64, 8)).tolist(), flush=True)
sys.stdin.readline()
print(backend.asnumpy(memory.read(64, 8)).tolist(), flush=True)
memory.close()
"""


@pytest.fixture
async def crew() -> AsyncIterator[Crew]:
    async with AsyncExitStack() as stack:
        yield Crew(stack)


def opener(ipc, memory, nbytes):
    line = [sys.executable, "-c", OPENER, ipc.address(0), memory.handle.hex(), str(nbytes)]
    pipe = subprocess.PIPE
    return subprocess.Popen(line, stdin=pipe, stdout=pipe, stderr=pipe, text=True)


def test_another_process_opens_memory(device):
    ipc = device.platform.ipc()
    memory = ipc.allocate(0, 4096)
    memory.write(64, backend.to_device(np.arange(8, dtype=np.uint8), device))
    with opener(ipc, memory, memory.nbytes) as other:
        assert other.stdout.readline().strip() == str(list(range(8)))
        memory.write(64, np.full(8, 7, np.uint8))
        out, errors = other.communicate("\n")
        assert out.strip() == str([7] * 8), errors
    with opener(ipc, memory, memory.nbytes + 1) as other:
        assert "said to have" in other.communicate("")[1]
    memory.close()


def test_what_cuda_refuses(device):
    ipc = device.platform.ipc()
    memory = ipc.allocate(0, 4096)
    for handle in (memory.handle, bytes(64), b"x" * 64):
        with pytest.raises((RuntimeError, WireError)):
            backend.open_shared("cuda", ipc.address(0), handle, memory.nbytes)
    with pytest.raises(RuntimeError):
        backend.open_shared("cuda", "ffff:ff:1f.0", memory.handle, memory.nbytes)
    ours = backend.to_device(np.arange(8, dtype=np.uint8), device)
    memory.write(0, ours)  # the device is none the worse for it
    assert backend.asnumpy(memory.read(0, 8)).tolist() == list(range(8))
    memory.close()


async def test_arrays_of_calls_stay_on_the_device(crew, device):
    ann = await crew.hire("ann")
    await crew.process("bob", "cuda", script="device_things.py")
    host = np.random.default_rng(0).standard_normal((3, MIB)).astype(np.float32)
    x = backend.to_device(host, device)
    async with asyncio.timeout(60):  # until both ends have opened memory of each other
        while True:
            await ann.remote.rpc_async("bob", device_things.echo, (x,), timeout=60)
            peer = ann.agent.peer_for("bob")
            if peer.stats.sent[Lane.DEVICE].messages and peer.stats.received[Lane.DEVICE].messages:
                break
    before = device_things.traffic(peer.stats)
    found = await ann.remote.rpc_async("bob", device_things.double_in_place, (x,), timeout=60)
    after = device_things.traffic(peer.stats)
    assert {lane: after[lane] - before[lane] for lane in after} == {
        "inline": 0,
        "striped": 0,
        "shm": 0,
        "device": 2 * host.nbytes,
    }
    assert backend.device_of(found) == device
    np.testing.assert_array_equal(backend.asnumpy(found), host * 2)
    np.testing.assert_array_equal(backend.asnumpy(x), host)


async def test_work_that_was_queued_is_in_what_arrives(crew, device):
    """The copy begins after what the stream holds, and the other end waits for it."""
    ann = await crew.hire("ann")
    await crew.process("bob", "cuda", script="device_things.py")
    xp = backend.cupy()
    square = xp.ones((2048, 2048), np.float32) / 2048
    for _ in range(30):
        x = xp.ones((2048, 2048), np.float32)
        for _ in range(20):
            x = x @ square  # stays one everywhere
        found = await ann.remote.rpc_async("bob", device_things.echo, (x,), timeout=60)
        x *= 0
        np.testing.assert_allclose(backend.asnumpy(found), 1, rtol=1e-3)
    assert ann.agent.peer_for("bob").stats.sent[Lane.DEVICE].messages
