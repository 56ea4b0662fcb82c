"""Short work runs at once, once it is known to be short; long work never."""

import threading
import time

import pytest

from psframework.dist_autograd import pace
from psframework.dist_autograd.pace import REMEMBERED, SURE, Pace

HERE = threading.get_ident


async def test_short_work_runs_at_once_when_it_was_short_a_few_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace, "LONGEST_SECONDS", 10.0)  # whatever else this machine does
    known = Pace()
    threads = [await known.run("small", HERE) for _ in range(SURE + 1)]
    assert HERE() not in threads[:SURE] and threads[SURE] == HERE()
    assert await known.run("another", HERE) != HERE()


async def test_work_that_waits_or_computes_stays_in_the_thread() -> None:
    known = Pace()

    def spin() -> int:
        end = time.thread_time() + 2 * pace.SHORT_SECONDS
        while time.thread_time() < end:
            pass
        return HERE()

    def wait() -> int:
        time.sleep(2 * pace.LONGEST_SECONDS)
        return HERE()

    for work in (spin, wait):
        assert HERE() not in [await known.run(work, work) for _ in range(2 * SURE)]


async def test_work_that_became_long_goes_back_to_the_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace, "LONGEST_SECONDS", 10.0)
    known = Pace()
    for _ in range(SURE):
        await known.run("work", HERE)
    monkeypatch.setattr(pace, "LONGEST_SECONDS", 0.0)
    assert await known.run("work", HERE) == HERE()  # nobody could know
    assert await known.run("work", HERE) != HERE()


async def test_an_error_is_the_callers_and_only_so_many_kinds_are_remembered() -> None:
    known = Pace()
    with pytest.raises(ZeroDivisionError):
        await known.run("fails", lambda: 1 / 0)
    assert known._short == {"fails": 0}
    for kind in range(REMEMBERED + 10):
        known._note(kind, short=True)
    assert len(known._short) == REMEMBERED
