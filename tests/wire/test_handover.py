"""The pure part of the handover (who proves what), packets with descriptors, and where sockets live."""

import asyncio
import os
import socket
import stat

import pytest
from hypothesis import given
from hypothesis import strategies as st

from psframework.errors import (
    ConfigurationError,
    ContextClosed,
    DeadlineExceeded,
    PeerLost,
    PermissionDenied,
    PsfError,
    ResourceExhausted,
    WireError,
)
from psframework.wire import handover
from psframework.wire.shm import Segment

KEY, OTHER = b"k" * 32, b"o" * 32
KEYS = {handover.fingerprint(KEY): KEY}


def test_both_ends_prove_the_key_without_sending_it():
    hello = handover.pack_hello(KEY)
    assert handover.read_hello(hello, KEYS) == KEY
    challenge, nonce = handover.pack_challenge(KEY, hello)
    proof = handover.answer_challenge(KEY, hello, challenge, 7)
    offer = (7).to_bytes(8, "little") + proof
    assert handover.read_offer(KEY, hello, nonce, offer) == 7
    assert KEY not in hello + challenge + offer


def test_a_stranger_is_refused():
    with pytest.raises(PermissionDenied, match="no session"):
        handover.read_hello(handover.pack_hello(OTHER), KEYS)
    hello = handover.pack_hello(KEY)
    _, nonce = handover.pack_challenge(KEY, hello)
    with pytest.raises(PermissionDenied, match="proof"):
        handover.read_offer(KEY, hello, nonce, bytes(40))


def test_a_proof_fits_one_segment_and_one_conversation():
    hello = handover.pack_hello(KEY)
    challenge, nonce = handover.pack_challenge(KEY, hello)
    proof = handover.answer_challenge(KEY, hello, challenge, 7)
    with pytest.raises(PermissionDenied):
        handover.read_offer(KEY, hello, nonce, (8).to_bytes(8, "little") + proof)
    _, later = handover.pack_challenge(KEY, hello)
    with pytest.raises(PermissionDenied):
        handover.read_offer(KEY, hello, later, (7).to_bytes(8, "little") + proof)


def test_a_squatter_on_the_socket_is_found_out():
    hello = handover.pack_hello(KEY)
    challenge, _ = handover.pack_challenge(OTHER, hello)
    with pytest.raises(PermissionDenied, match="does not know"):
        handover.answer_challenge(KEY, hello, challenge, 1)
    with pytest.raises(PermissionDenied, match="does not know"):
        # The server's own proof sent back is not the client's, and the other way round.
        handover.answer_challenge(KEY, hello, hello[8:40] + bytes(32), 1)


@pytest.mark.parametrize("error", [PermissionDenied("no"), ResourceExhausted("full"), WireError("bad")])
def test_refusals_keep_their_class_and_reason(error):
    with pytest.raises(type(error), match=str(error)):
        handover.check_answer(handover.pack_answer(error))
    handover.check_answer(handover.pack_answer(None))


def test_other_errors_and_long_reasons_become_wire_errors():
    with pytest.raises(WireError) as caught:
        handover.check_answer(handover.pack_answer(KeyError("é" * 5000)))
    assert len(str(caught.value)) < 600


@given(st.binary(max_size=200))
def test_any_packet_is_read_or_refused(packet):
    hello = handover.pack_hello(KEY)
    for read in (
        lambda: handover.read_hello(packet, KEYS),
        lambda: handover.answer_challenge(KEY, hello, packet, 1),
        lambda: handover.read_offer(KEY, hello, bytes(32), packet),
        lambda: handover.check_answer(packet),
    ):
        try:
            read()
        except PsfError:
            continue
        assert packet == b"\0"


def test_packets_with_descriptors():
    left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    right.setblocking(False)
    with left, right, Segment.create(4096) as segment:
        segment.buffer[:2] = b"hi"
        handover.send_descriptor(left, segment.fd, b"payload")
        left.send(b"plain")
        fd, payload = handover.recv_descriptor(right)
        assert payload == b"payload"
        assert not os.get_inheritable(fd)
        with Segment.from_fd(fd) as mine:
            assert mine.read(0, 2) == b"hi"
        assert handover.recv_descriptor(right) == (None, b"plain")
        with pytest.raises(BlockingIOError):
            handover.recv_descriptor(right)


def test_too_many_descriptors_or_bytes_are_refused_and_closed():
    left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with left, right, Segment.create(4096) as segment:
        before = len(os.listdir("/proc/self/fd"))
        for payload, fds in ((b"x", 2), (b"x", 250), (b"x" * 5000, 1), (b"x" * 5000, 0)):
            socket.send_fds(left, [payload], [segment.fd] * fds)
            with pytest.raises(WireError):
                handover.recv_descriptor(right)
            assert len(os.listdir("/proc/self/fd")) <= before  # others may close theirs meanwhile


def test_directory_by_environment_then_by_user():
    user = f"psframework-{os.geteuid()}"
    assert str(handover.default_directory({"PSF_SHM_DIR": "/x"})) == "/x"
    assert str(handover.default_directory({"XDG_RUNTIME_DIR": "/run/user/7"})) == f"/run/user/7/{user}"
    assert handover.default_directory({}).name == user


def test_a_new_directory_is_private(tmp_path):
    made = handover.prepare_directory(tmp_path / "sockets")
    assert stat.S_IMODE(made.stat().st_mode) == 0o700
    assert handover.prepare_directory(made) == made


def test_unsafe_or_impossible_directories_are_refused(tmp_path):
    everyones = tmp_path / "everyones"
    everyones.mkdir()
    everyones.chmod(0o777)
    with pytest.raises(ConfigurationError, match="writable for everyone"):
        handover.prepare_directory(everyones)
    everyones.chmod(0o1777)
    handover.prepare_directory(everyones)
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match="PSF_SHM_DIR"):
        handover.prepare_directory(tmp_path / "file")


async def test_a_path_where_nobody_listens_means_another_host(tmp_path):
    with Segment.create(4096) as segment:
        with pytest.raises(PeerLost, match="No such file") as caught:
            await handover.offer_segment(tmp_path / "none.sock", KEY, 1, segment)
        assert caught.value.reason == "refused"
        with handover.unix_socket() as stale:
            stale.bind(str(tmp_path / "stale.sock"))
        with pytest.raises(PeerLost, match="refused"):
            await handover.offer_segment(tmp_path / "stale.sock", KEY, 1, segment)


@pytest.mark.parametrize("backlog", [0, 8])
async def test_a_listener_that_never_answers_ends_by_the_deadline(tmp_path, backlog):
    with handover.unix_socket() as listener, handover.unix_socket() as first, Segment.create(4096) as segment:
        path = tmp_path / "deaf.sock"
        listener.bind(str(path))
        listener.listen(backlog)
        first.connect(str(path))  # with backlog 0 the next connection finds no place
        with pytest.raises(DeadlineExceeded):
            await handover.offer_segment(path, KEY, 1, segment, deadline_s=0.1)


@pytest.mark.parametrize("answer", [b"", b"\0", b"\1go away", bytes(64), b"x" * 900, None])
async def test_a_listener_that_is_not_ours_gets_nothing(tmp_path, answer):
    """It sees the fingerprint and a nonce, never a key or a descriptor."""
    path = tmp_path / "other.sock"
    with handover.unix_socket() as listener, Segment.create(4096) as segment:
        listener.bind(str(path))
        listener.listen()
        seen = []

        async def squatter():
            await handover.wait_for(listener)
            connection, _ = listener.accept()
            with connection:
                connection.setblocking(False)
                seen.append(await handover.receive(connection))
                if answer is not None:
                    connection.send(answer)

        task = asyncio.create_task(squatter())
        with pytest.raises((WireError, PermissionDenied, PeerLost)):
            await handover.offer_segment(path, KEY, 1, segment)
        await task
    (fd, packet), *_ = seen
    assert fd == -1
    assert KEY not in packet


def test_a_session_that_has_ended_is_told_from_a_key_that_nobody_knows() -> None:
    key = handover.new_key()
    hello, name = handover.pack_hello(key), handover.fingerprint(key)
    with pytest.raises(PermissionDenied, match="no session"):
        handover.read_hello(hello, {}, ended=[b"another"])
    with pytest.raises(ContextClosed, match="has ended"):
        handover.read_hello(hello, {}, ended=[name])
    assert handover.read_hello(hello, {name: key}, ended=[name]) == key
