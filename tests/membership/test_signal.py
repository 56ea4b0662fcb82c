"""Signals wake everybody who waits, once."""

import asyncio

import pytest

from psframework.errors import DeadlineExceeded
from psframework.membership.signal import Signal
from psframework.rpc.deadline import Deadline


async def test_wakes_all_who_wait_now() -> None:
    signal = Signal()
    waiting = [asyncio.ensure_future(signal.wait()) for _ in range(3)]
    await asyncio.sleep(0)
    signal.notify()
    await asyncio.wait_for(asyncio.gather(*waiting), 5)
    later = asyncio.ensure_future(signal.wait())
    await asyncio.sleep(0)
    assert not later.done()
    later.cancel()


async def test_until() -> None:
    signal, seen = Signal(), []
    waiting = asyncio.ensure_future(signal.until(lambda: len(seen) == 2, Deadline.after(5), "two"))
    for number in range(2):
        await asyncio.sleep(0)
        assert not waiting.done()
        seen.append(number)
        signal.notify()
    await waiting
    with pytest.raises(DeadlineExceeded, match="in vain for rain"):
        await signal.until(lambda: False, Deadline.after(0.01), "rain")
