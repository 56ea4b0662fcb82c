"""Letters before and after they are asked for, and how much may wait."""

import pytest

from psframework.collective.mailbox import Mailbox
from psframework.collective.post import Key, Letter
from psframework.errors import ArgumentError, WireError


def letter(nbytes: int = 0, header: bytes = b"") -> Letter:
    return Letter(header, [memoryview(bytes(nbytes))] if nbytes else [])


def key(step: int, sequence: int = 1) -> Key:
    return Key("", sequence, step)


def test_a_letter_waits_until_it_is_taken_once() -> None:
    box, sent = Mailbox(), letter(header=b"h")
    assert box.take(1, key(0)) is None
    assert box.put(1, key(0), sent)
    assert box.take(2, key(0)) is None  # of another rank
    assert box.take(1, key(0)) is sent
    assert box.take(1, key(0)) is None
    assert len(box) == 0


def test_who_waits_gets_it_at_once() -> None:
    box, got = Mailbox(), []
    box.wait(1, key(0), got.append)
    with pytest.raises(ArgumentError, match="two wait"):
        box.wait(1, key(0), got.append)
    sent = letter(5)
    assert box.put(1, key(0), sent)
    assert got == [sent]
    assert len(box) == 0


def test_who_gave_up_leaves_it_to_the_next() -> None:
    box, got = Mailbox(), []
    box.wait(1, key(0), got.append)
    box.forget(1, key(0))
    box.forget(1, key(0))
    sent = letter(5)
    assert box.put(1, key(0), sent)
    assert got == []
    assert box.take(1, key(0)) is sent


def test_the_same_letter_twice_is_an_error() -> None:
    box = Mailbox()
    box.put(1, key(0), letter())
    with pytest.raises(WireError, match=r"rank 1 sent .* twice"):
        box.put(1, key(0), letter())


@pytest.mark.parametrize(("bytes_", "letters", "size"), [(100, 1000, 50), (1000, 2, 0)])
def test_what_nobody_asks_for_is_bounded_for_each_rank(bytes_: int, letters: int, size: int) -> None:
    box = Mailbox(bytes_, letters)
    assert box.put(1, key(0), letter(size))
    assert box.put(1, key(1), letter(size))
    assert not box.put(1, key(2), letter(size))
    assert box.put(2, key(2), letter(size))  # of another rank
    got: list[Letter] = []
    box.wait(1, key(3), got.append)
    assert box.put(1, key(3), letter(size))  # somebody waits for it
    assert len(got) == 1
    box.take(1, key(0))
    assert box.put(1, key(2), letter(size))


def test_one_letter_is_taken_however_large() -> None:
    box = Mailbox(10)
    assert box.put(1, key(0), letter(1000))
    assert not box.put(1, key(1), letter(1))
    box.take(1, key(0))
    assert box.put(1, key(1), letter(1000))


def test_the_end() -> None:
    box, got = Mailbox(10), []
    box.wait(1, key(0), got.append)
    box.put(1, key(1), letter(1000))
    box.clear()
    assert len(box) == 0
    assert box.put(1, key(0), letter(1000))
    assert got == []
