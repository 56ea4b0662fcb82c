"""The segment server with real sockets and real processes: handing over, strangers, garbage, leaks."""

import asyncio
import contextlib
import fcntl
import gc
import os
import socket
import stat
import sys
import textwrap
from pathlib import Path

import pytest

from psframework.errors import (
    ConfigurationError,
    ContextClosed,
    PermissionDenied,
    ResourceExhausted,
    WireError,
)
from psframework.wire import handover, shm
from psframework.wire.handover import offer_segment
from psframework.wire.segment_server import SegmentServer, sweep
from psframework.wire.shm import Segment

pytestmark = pytest.mark.skipif(not shm.available(), reason="sealed segments need Linux")

KEY = handover.new_key()


class Inbox:
    """Where a test's segments arrive."""

    def __init__(self):
        self.segments = {}

    def __call__(self, key, number, segment):
        self.segments[number] = segment

    def close(self):
        for segment in self.segments.values():
            segment.close()


@pytest.fixture
async def inbox():
    box = Inbox()
    yield box
    box.close()


@pytest.fixture
async def server(tmp_path, inbox):
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    async with SegmentServer(tmp_path / "sockets", inbox, max_bytes=1 << 24) as running:
        running.expect(KEY)
        yield running
    inbox.close()
    assert len(os.listdir("/proc/self/fd")) <= before  # others may close theirs meanwhile
    assert os.listdir(tmp_path / "sockets") == []


async def works(server, inbox, number=99):
    """The server still does its job."""
    with Segment.create(1 << 16) as segment:
        segment.buffer[:5] = b"hello"
        await offer_segment(server.path, KEY, number, segment)
        assert inbox.segments[number].read(0, 5) == b"hello"


async def test_a_segment_arrives_and_is_shared(server, inbox):
    with Segment.create(1 << 20) as mine:
        await offer_segment(server.path, KEY, 2**64 - 1, mine)
        theirs = inbox.segments[2**64 - 1]
        assert theirs.nbytes == mine.nbytes
        theirs.array(0, (3,), "int32")[:] = [1, 2, 3]
        assert mine.array(0, (3,), "int32").tolist() == [1, 2, 3]
    theirs.buffer[:1] = b"x"  # outlives the sender's mapping


async def test_the_socket_is_private_and_random(server):
    folder = os.path.dirname(server.path)
    assert stat.S_IMODE(os.stat(folder).st_mode) == 0o700
    assert stat.S_IMODE(os.stat(server.path).st_mode) & 0o007 == 0
    async with SegmentServer(folder) as other:
        assert other.path != server.path


async def test_many_at_once(server, inbox):
    with Segment.create(4096) as segment:
        await asyncio.gather(*(offer_segment(server.path, KEY, number, segment) for number in range(200)))
    assert sorted(inbox.segments) == list(range(200))


async def test_keys_are_needed_and_can_be_forgotten(server, inbox, caplog):
    with Segment.create(4096) as segment:
        with pytest.raises(PermissionDenied, match="no session"):
            await offer_segment(server.path, handover.new_key(), 1, segment)
        await works(server, inbox)
        caplog.clear()
        server.forget(KEY)
        server.forget(handover.new_key())
        with pytest.raises(ContextClosed, match="has ended"):
            await offer_segment(server.path, KEY, 1, segment)
        assert not caplog.records
    assert list(inbox.segments) == [99]


@pytest.mark.parametrize(
    "error", [ResourceExhausted("table is full"), PermissionDenied("not you"), KeyError("bug")]
)
async def test_the_receivers_refusal_reaches_the_sender(server, inbox, error):
    def refuse(key, number, segment):
        raise error

    server.on_segment = refuse
    expected = WireError if isinstance(error, KeyError) else type(error)
    with Segment.create(4096) as segment, pytest.raises(expected):
        await offer_segment(server.path, KEY, 1, segment)
    server.on_segment = inbox
    await works(server, inbox)


async def test_a_segment_beyond_the_bound_is_refused(server, inbox):
    with Segment.create((1 << 24) + 1) as segment, pytest.raises(WireError, match="are allowed"):
        await offer_segment(server.path, KEY, 1, segment)
    await works(server, inbox)


class Rogue:
    """A client that knows the protocol (and, if it is given, the key) and breaks it."""

    def __init__(self, server):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.connect(server.path)
        self.socket.setblocking(False)

    async def offer(self, fd, *, key=KEY, number=1):
        hello = handover.pack_hello(KEY)
        await handover.send(self.socket, hello)
        challenge = (await handover.receive(self.socket))[1]
        proof = handover.answer_challenge(KEY, hello, challenge, number)
        if key is not KEY:
            proof = bytes(32)
        await handover.send(self.socket, number.to_bytes(8, "little") + proof, fd)
        handover.check_answer((await handover.receive(self.socket))[1])


def sparse():
    fd = os.memfd_create("sparse", os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, 1 << 20)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
    return fd


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: os.memfd_create("unsealed", os.MFD_ALLOW_SEALING), "not sealed"),
        (sparse, "not reserved"),
        (lambda: os.open("/dev/zero", os.O_RDWR), "not a segment"),
        (lambda: None, "without a descriptor"),
    ],
)
async def test_harmful_descriptors_are_refused(server, inbox, make, words):
    fd = make()
    rogue = Rogue(server)
    with rogue.socket, pytest.raises(WireError, match=words):
        await rogue.offer(fd)
    if fd is not None:
        os.close(fd)
    await works(server, inbox)


async def test_a_wrong_proof_is_refused(server, inbox):
    with Segment.create(4096) as segment:
        rogue = Rogue(server)
        with rogue.socket, pytest.raises(PermissionDenied, match="proof"):
            await rogue.offer(segment.fd, key=b"guess")
    assert inbox.segments == {}
    await works(server, inbox)


@pytest.mark.parametrize(
    "packet", [b"GET / HTTP/1.1\r\n\r\n", bytes(72), b"PSFSEG01" + bytes(64), b"PSFSEG02", b"x" * 100_000]
)
@pytest.mark.parametrize("with_descriptor", [False, True])
async def test_garbage_harms_nobody(server, inbox, packet, with_descriptor):
    rogue = Rogue(server)
    with rogue.socket, Segment.create(4096) as segment:
        await handover.send(rogue.socket, packet, segment.fd if with_descriptor else None)
        with contextlib.suppress(WireError, PermissionDenied):  # a refusal, or just the end
            handover.check_answer((await handover.receive(rogue.socket))[1])
            pytest.fail("garbage was confirmed")
    await works(server, inbox)


async def test_peers_that_leave_midway_harm_nobody(server, inbox, caplog):
    Rogue(server).socket.close()
    rogue = Rogue(server)
    await handover.send(rogue.socket, handover.pack_hello(KEY))
    rogue.socket.close()
    rogue = Rogue(server)
    await handover.send(rogue.socket, handover.pack_hello(KEY))
    await handover.receive(rogue.socket)
    rogue.socket.close()
    await works(server, inbox)
    assert not caplog.records  # a member that ends while it offers memory is nothing to be warned of


async def test_silent_peers_are_hung_up_on(tmp_path, inbox):
    async with SegmentServer(tmp_path, inbox, seconds=0.05) as server:
        server.expect(KEY)
        rogue = Rogue(server)
        with rogue.socket:
            answer = (await asyncio.wait_for(handover.receive(rogue.socket), 5))[1]
            with pytest.raises(WireError):
                handover.check_answer(answer)


async def test_too_many_silent_peers_do_not_lock_others_out_for_long(tmp_path, inbox):
    async with SegmentServer(tmp_path, inbox, seconds=0.1) as server:
        server.expect(KEY)
        rogues = [Rogue(server) for _ in range(64)]
        for rogue in rogues:
            with contextlib.suppress(WireError):
                await asyncio.wait_for(handover.receive(rogue.socket), 5)
            rogue.socket.close()
        await works(server, inbox)


async def test_leaving_with_a_handover_under_way(tmp_path, inbox):
    before = len(os.listdir("/proc/self/fd"))
    async with SegmentServer(tmp_path, inbox) as server:
        server.expect(KEY)
        rogue = Rogue(server)
        await handover.send(rogue.socket, handover.pack_hello(KEY))
        await handover.receive(rogue.socket)
    with rogue.socket, pytest.raises(WireError, match="closed"):
        await handover.receive(rogue.socket)
    assert len(os.listdir("/proc/self/fd")) <= before  # others may close theirs meanwhile
    with pytest.raises(ConfigurationError, match="not running"):
        _ = server.path


async def test_paths_longer_than_a_socket_address(tmp_path, inbox):
    async with SegmentServer(tmp_path / ("d" * 100) / ("e" * 100), inbox) as server:
        server.expect(KEY)
        assert len(server.path) > 200
        await works(server, inbox)


async def test_a_place_without_sockets_is_a_configuration_error():
    with pytest.raises(ConfigurationError, match="PSF_SHM_DIR"):
        async with SegmentServer("/proc/nowhere"):
            pass


CHILD = """
    import asyncio, sys
    from psframework.wire import handover
    from psframework.wire.shm import Segment

    async def main(path, key):
        with Segment.create(1 << 20) as segment:
            numbers = segment.array(0, (1000,), "float32")
            numbers[:] = range(1000)
            await handover.offer_segment(path, bytes.fromhex(key), 5, segment)
            print("shared", flush=True)
            sys.stdin.readline()
            print(numbers.sum(), flush=True)
            sys.stdin.readline()

    asyncio.run(main(*sys.argv[1:]))
"""


@pytest.fixture
async def child(server):
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        textwrap.dedent(CHILD),
        server.path,
        KEY.hex(),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    yield process
    if process.returncode is None:
        process.kill()
    await process.communicate()
    process._transport.close()


async def test_two_processes_share_memory(server, inbox, child):
    assert await asyncio.wait_for(child.stdout.readline(), 20) == b"shared\n"
    numbers = inbox.segments[5].array(0, (1000,), "float32")
    assert numbers[999] == 999
    numbers += 1
    child.stdin.write(b"\n")
    assert await asyncio.wait_for(child.stdout.readline(), 20) == b"500500.0\n"
    child.kill()
    await child.wait()
    numbers -= 1  # the memory outlives the process that made it
    assert numbers.sum() == 499_500


async def test_what_killed_processes_left_is_swept(server, inbox):
    live = Path(server.path)
    left, young = live.with_name("left.sock"), live.with_name("young.sock")
    for path in (left, young):
        with handover.unix_socket() as sock:
            sock.bind(str(path))
    for path in (left, live):
        os.utime(path, (1, 1))
    sweep(live.parent)
    assert not left.exists() and young.exists()
    young.unlink()
    await works(server, inbox)
