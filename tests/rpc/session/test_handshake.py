"""The first message each way: who may talk to whom, and what is refused with which words."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from psframework.errors import PeerLost, PermissionDenied, PsfError, WireError
from psframework.rpc.call import PeerInfo
from psframework.rpc.session import frames, handshake
from psframework.rpc.session.frames import FrameBatch, Hello, Identity, LinkState, Welcome
from psframework.wire.lanes import Lane

LOCAL = PeerInfo("shard", "parameter-server", "", 7)
STATE = LinkState(window=1 << 20)
SENDER = Identity(name="trainer", role="trainer", job="a", incarnation=3)


def hello(**changes: object) -> Hello:
    made = Hello(protocol=frames.PROTOCOL, session=bytes(16), connection=1, sender=SENDER, state=STATE)
    made.MergeFrom(Hello(**changes))  # type: ignore[arg-type]
    return made


def test_a_good_hello_passes() -> None:
    read = handshake.read_hello(handshake.hello_message(hello()))
    handshake.check_expected(read, LOCAL)
    assert handshake.info_of(read.sender) == PeerInfo("trainer", "trainer", "a", 3)


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (b"\xff\xff", "not a batch"),
        (object(), "must begin"),
        (FrameBatch().SerializeToString(), "must begin"),
        (handshake.hello_message(hello(protocol=99)), "same version"),
        (handshake.hello_message(Hello(protocol=1, session=b"short", connection=1)), "without a session"),
        (handshake.hello_message(Hello(protocol=1, session=bytes(16), connection=1)), "identity"),
        (handshake.hello_message(hello(sender=Identity(name="x" * 200))), "identity"),
        (handshake.hello_message(hello(state=LinkState(segment_key=bytes(100)))), "too long"),
    ],
)
def test_a_bad_hello_is_a_wire_error(message: object, words: str) -> None:
    with pytest.raises(WireError, match=words):
        handshake.read_hello(message)


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"expected": Identity(name="other")}, PeerLost, "other .* is not here"),
        ({"expected": Identity(role="worker")}, PeerLost, "is not here"),
        ({"expected": Identity(name="shard", incarnation=6)}, PeerLost, "has restarted"),
    ],
)
def test_the_wrong_member_answers(changes: dict[str, Identity], error: type[PsfError], words: str) -> None:
    with pytest.raises(error, match=words):
        handshake.check_expected(hello(**changes), LOCAL)


def test_jobs_do_not_mix() -> None:
    with pytest.raises(PermissionDenied, match="job 'a'"):
        handshake.check_expected(hello(), PeerInfo("shard", "parameter-server", "b", 7))


def test_a_refusal_arrives_as_its_own_class() -> None:
    with pytest.raises(PermissionDenied, match="no"):
        handshake.read_welcome(handshake.refusal(PermissionDenied("no")))
    with pytest.raises(WireError):
        handshake.read_welcome(FrameBatch().SerializeToString())
    welcome = Welcome(sender=SENDER, state=STATE)
    assert handshake.read_welcome(handshake.welcome_message(welcome)) == welcome


def test_unknown_lanes_are_skipped() -> None:
    assert handshake.lanes_of(LinkState(lanes=[2, 99])) == {Lane.INLINE, Lane.STRIPED}


@given(st.binary(max_size=300))
def test_random_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(PsfError):
        handshake.read_hello(data)
