"""Sessions: whatever breaks, each frame arrives once and in order, and nothing is kept for ever."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from psframework.errors import WireError
from psframework.rpc.session.session import ACK_EVERY, MAX_BATCH, Session


class Wire:
    """One direction of a connection that may lose what is on it."""

    def __init__(self) -> None:
        self.messages: list[tuple[int, int, list[bytes]]] = []


def write(session: Session, wire: Wire) -> None:
    first, frames = session.take()
    received, _, _ = session.report()
    wire.messages.append((first, received, frames))


def read(session: Session, wire: Wire, got: list[bytes]) -> None:
    if not wire.messages:
        return
    first, received, frames = wire.messages.pop(0)
    session.acknowledge(received)
    got += frames[session.accept(first, len(frames)) :]


@given(st.lists(st.sampled_from("abABxXyYc"), max_size=120))
def test_each_frame_arrives_once_in_order(steps: list[str]) -> None:
    """a, A: a side pushes; b, B, y, Y: it writes; x, X: the other side reads; c: the connection breaks."""
    left, right = Session(1 << 20), Session(1 << 20)
    there, back = Wire(), Wire()
    sent: tuple[list[bytes], list[bytes]] = ([], [])
    got: tuple[list[bytes], list[bytes]] = ([], [])

    def reconnect() -> None:
        there.messages.clear()
        back.messages.clear()
        left.resume(right.received)
        right.resume(left.received)

    for number, step in enumerate(steps):
        frame = b"%d" % number
        match step:
            case "a":
                left.push(frame)
                sent[0].append(frame)
            case "A":
                right.push(frame)
                sent[1].append(frame)
            case "b" | "y":
                write(left, there)
            case "B" | "Y":
                write(right, back)
            case "x":
                read(right, there, got[0])
            case "X":
                read(left, back, got[1])
            case "c":
                reconnect()
    reconnect()
    for _ in range(3):
        write(left, there)
        write(right, back)
        while there.messages or back.messages:
            read(right, there, got[0])
            read(left, back, got[1])
    assert got == sent
    assert left.kept == right.kept == 0


def test_a_duplicate_is_skipped_and_a_gap_is_an_error() -> None:
    session = Session()
    assert session.accept(1, 3) == 0
    assert session.accept(2, 4) == 2
    assert session.received == 5
    assert session.accept(1, 2) == 2
    assert session.received == 5
    with pytest.raises(WireError, match="is next"):
        session.accept(7, 1)


def test_what_was_never_sent_can_not_be_acknowledged() -> None:
    session = Session()
    session.push(b"x")
    with pytest.raises(WireError, match="never sent"):
        session.acknowledge(1)
    session.take()
    session.acknowledge(1)
    session.acknowledge(1)
    session.acknowledge(0)
    with pytest.raises(WireError, match="lost"):
        session.resume(0)


def test_a_batch_is_bounded_and_a_large_frame_travels_alone() -> None:
    session = Session()
    session.push(b"a" * (MAX_BATCH + 1))
    session.push(b"b" * (MAX_BATCH - 1))
    session.push(b"cc")
    assert [len(session.take()[1]) for _ in range(3)] == [1, 1, 1]
    assert session.sent == 3


def test_reports_are_owed_and_sometimes_urgent() -> None:
    session = Session(1000)
    assert not session.owes_report
    session.accept(1, 1)
    assert session.owes_report and not session.report_is_urgent
    assert session.report() == (1, 0, 0)
    session.requests.consumed += 250
    assert session.owes_report and session.report_is_urgent
    session.report()
    session.accept(2, ACK_EVERY)
    assert session.report_is_urgent


def test_what_is_consumed_during_a_handshake_is_still_owed() -> None:
    session = Session(1000)
    session.replies.take_in(500)
    assert session.report() == (0, 0, 0)  # in the Hello
    session.replies.consumed += 500
    session.resume(0)
    assert session.owes_report
    assert session.report() == (0, 0, 500)


def test_the_other_end_says_how_much_it_takes() -> None:
    session = Session()
    session.set_window(100)
    assert session.requests.size == session.replies.size == 100
