"""A blocked loop is told once, with its line; a late tick alone is not."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
import time

import pytest
import structlog

from psframework.rpc import watchdog
from psframework.rpc.watchdog import BlockDetector, watch_loop


def in_user_code() -> str | None:
    return "train.py:3 in step"


def waiting() -> str | None:
    return None


@pytest.fixture
def detector():
    return BlockDetector(0.25, 0.02, 0.0, 0.0)


def test_a_block_is_told_while_it_lasts_and_only_once(detector):
    assert detector.look(0.2, in_user_code) is None
    block = detector.look(0.28, in_user_code)
    assert block.where == "train.py:3 in step" and block.seconds == pytest.approx(0.26)
    assert detector.look(5.0, in_user_code) is None and detector.tick(10.0, 10.0) is None
    assert detector.look(10.28, in_user_code) is not None  # the next block is another one


def test_a_block_that_the_thread_missed_is_told_by_the_tick(detector):
    assert detector.look(0.2, in_user_code) is None  # seen, but not yet long enough
    assert detector.tick(0.3, 0.0).where == "train.py:3 in step"
    assert detector.tick(0.6, 0.3).where == ""  # the GIL was held: nobody could look, but the CPU was used
    assert detector.tick(0.62, 0.3) is None


def test_a_starved_process_is_no_blocked_loop(detector):
    for now in (0.15, 0.3, 2.0):
        assert detector.look(now, waiting) is None
    assert detector.tick(2.0, 0.1) is None


def test_short_delays_are_none(detector):
    assert detector.tick(0.26, 0.26) is None and detector.look(0.5, in_user_code) is None


@pytest.fixture
def captured():
    with structlog.testing.capture_logs() as lines:
        yield lines


def warnings(lines):
    return [line for line in lines if line["log_level"] == "warning"]


async def test_300_ms_are_exactly_one_warning_that_names_line_and_fix(captured):
    async with watch_loop() as tick:
        await asyncio.sleep(0.05)
        before = tick.count
        time.sleep(0.3)  # noqa: ASYNC251 (this is the mistake)
        await asyncio.sleep(0.1)
        assert tick.count > before
    (line,) = warnings(captured)
    assert "time.sleep(0.3)" in line["where"] and "test_watchdog.py" in line["where"]
    assert "await psf.compute" in line["fix"] and 200 <= line["milliseconds"] < 2000


async def test_two_users_of_a_loop_share_one_tick_and_one_warning(captured):
    async with watch_loop() as first:
        async with watch_loop() as second:
            assert first is second
        before = first.count
        await asyncio.sleep(0.1)
        assert first.count > before
        time.sleep(0.3)  # noqa: ASYNC251 (this is the mistake)
        await asyncio.sleep(0.05)
    assert len(warnings(captured)) == 1
    assert not [thread for thread in threading.enumerate() if thread.name == "psf-watchdog"]


async def test_a_loop_that_waits_or_yields_is_not_blocked(captured):
    async with watch_loop():
        end = time.monotonic() + 0.5
        while time.monotonic() < end:  # noqa: ASYNC110 (a busy loop is meant)
            await asyncio.sleep(0)
        await asyncio.sleep(0.4)
    assert warnings(captured) == []


async def test_the_line_is_the_users_not_a_librarys(captured):
    def slow_default(value):
        time.sleep(0.4)
        return str(value)

    async with watch_loop():
        json.dumps(object(), default=slow_default)  # a library on the way
        await asyncio.sleep(0.05)
    assert "in slow_default: time.sleep(0.4)" in warnings(captured)[0]["where"]


def test_a_block_inside_of_libraries_alone_names_the_innermost_line():
    ready, release = threading.Event(), threading.Event()

    def wait_in_library():
        ready.set()
        release.wait(10)

    thread = threading.Thread(target=wait_in_library)
    thread.start()
    assert ready.wait(10)
    where = watchdog.blocking_line(sys._current_frames()[thread.ident])
    release.set()
    thread.join()
    assert "in wait_in_library" in where
    assert watchdog.blocking_line(None) is None


def test_a_loop_that_ticks_again_while_it_is_looked_at_is_not_blocked(detector):
    ticking = threading.Thread(target=detector.tick, args=(1.0, 0.0))

    def where() -> str | None:  # the watching thread holds the lock, so the tick waits for it
        ticking.start()
        end = time.monotonic() + 10
        while (frame := sys._current_frames().get(ticking.ident)) is None or frame.f_code.co_name != "tick":
            assert time.monotonic() < end
        return watchdog.blocking_line(frame)

    assert detector.look(1.0, where) is None
    ticking.join()


def test_a_frame_that_has_no_line_at_this_moment():
    code = in_user_code.__code__

    class Moving:  # what a frame of another thread looks like between two lines
        f_code, f_lineno, f_back = code, None, None

    assert f":{code.co_firstlineno} in in_user_code" in watchdog.blocking_line(Moving())
