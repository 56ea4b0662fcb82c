"""Letters that come before, while and after somebody waits for them, and for runs that are over."""

import asyncio
from typing import Any

import pytest

from psframework.errors import ContextClosed, PeerLost
from psframework.pipeline.mailbox import Mailbox
from psframework.pipeline.plan import Key

OVER = ContextClosed("over")


def key(run: int, microbatch: int = 0, kind: str = "F") -> Key:
    return Key(run, kind, 0, microbatch)


async def waiting(mailbox: Mailbox, *keys: Key) -> list[asyncio.Task[Any]]:
    """Tasks that wait."""
    tasks = [asyncio.create_task(mailbox.take(each)) for each in keys]
    await asyncio.sleep(0)
    assert not any(task.done() for task in tasks)
    return tasks


async def test_a_letter_that_is_there_already() -> None:
    mailbox = Mailbox()
    mailbox.put(key(1), "value")
    assert len(mailbox) == 1
    assert await mailbox.take(key(1)) == "value" and len(mailbox) == 0


async def test_letters_that_come_later_go_to_whom_they_are_for() -> None:
    mailbox = Mailbox()
    keys = [key(1), key(1, 1), key(2), key(1, kind="B"), key(1, kind="S:low")]
    tasks = await waiting(mailbox, *keys)
    for each in reversed(keys):
        mailbox.put(each, str(each))
    assert await asyncio.gather(*tasks) == [str(each) for each in keys]
    assert len(mailbox) == 0


@pytest.mark.parametrize("value", [None, 0, False])
async def test_a_letter_may_be_nothing(value: Any) -> None:
    """An output that has no gradient is sent as None."""
    mailbox = Mailbox()
    (task,) = await waiting(mailbox, key(1))
    mailbox.put(key(1), value)
    assert await task is value
    mailbox.put(key(1), value)
    assert await mailbox.take(key(1)) is value


async def test_a_key_is_taken_once() -> None:
    mailbox = Mailbox()
    mailbox.put(key(1), "value")
    await mailbox.take(key(1))
    (task,) = await waiting(mailbox, key(1))
    mailbox.end(1, OVER)
    with pytest.raises(ContextClosed, match="over"):
        await task


async def test_who_gives_up_leaves_the_letter_to_the_next() -> None:
    mailbox = Mailbox()
    (task,) = await waiting(mailbox, key(1))
    task.cancel()
    await asyncio.wait([task])
    mailbox.put(key(1), "value")
    assert await mailbox.take(key(1)) == "value"


async def test_a_run_that_is_over() -> None:
    """What is there goes, what comes is dropped, who waits or comes to wait gets the error; others stay."""
    mailbox = Mailbox()
    tasks = await waiting(mailbox, key(2, 1), key(3, 1))
    for run in (1, 2, 3):
        mailbox.put(key(run), run)
    mailbox.end(2, PeerLost("gone", peer="stage-1"))
    mailbox.put(key(2), "late")
    assert len(mailbox) == 2 and mailbox.ended(1) is None and mailbox.ended(3) is None
    for waits in (tasks[0], mailbox.take(key(2)), mailbox.take(key(2, 5))):
        with pytest.raises(PeerLost, match="gone") as raised:
            await waits
        assert raised.value.peer == "stage-1"
    assert [await mailbox.take(key(run)) for run in (1, 3)] == [1, 3]
    mailbox.put(key(3, 1), "value")
    assert await tasks[1] == "value"


async def test_all_runs_up_to_one_are_over() -> None:
    mailbox = Mailbox()
    tasks = await waiting(mailbox, key(4), key(5), key(6))
    for run in range(1, 8):
        mailbox.put(key(run, 1), run)
    mailbox.end_through(5, OVER)
    assert len(mailbox) == 2
    for task in tasks[:2]:
        with pytest.raises(ContextClosed, match="over"):
            await task
    mailbox.put(key(3), "late")
    assert len(mailbox) == 2 and mailbox.ended(5) is OVER and mailbox.ended(6) is None
    mailbox.put(key(6), "value")
    assert await tasks[2] == "value"


async def test_the_first_end_counts_and_ends_do_not_go_back() -> None:
    mailbox = Mailbox()
    mailbox.end(5, OVER)
    mailbox.end(5, ContextClosed("again"))
    assert mailbox.ended(5) is OVER
    mailbox.end_through(3, ContextClosed("earlier"))
    mailbox.end_through(2, ContextClosed("earlier still"))
    assert str(mailbox.ended(2)) == str(mailbox.ended(3)) == "earlier"
    assert mailbox.ended(4) is None and mailbox.ended(5) is OVER
    mailbox.put(key(4), "value")
    assert await mailbox.take(key(4)) == "value"


async def test_nothing_is_kept_of_runs_that_are_over() -> None:
    """Inferences overlap: each ends for itself, and is forgotten when all before it are over."""
    mailbox = Mailbox()
    for run in range(1, 200):
        mailbox.put(key(run), run)
        mailbox.end(run, OVER)
        mailbox.end_through(run - 1, OVER)
    assert len(mailbox) == len(mailbox._waiting) == 0
    assert len(mailbox._ended) == 1
