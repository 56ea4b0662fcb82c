"""Short work in threads that users can't fill."""

import asyncio
import contextvars
import threading

import pytest

from psframework.wire.threads import in_thread


async def test_results_and_errors_come_back_from_another_thread() -> None:
    where = await in_thread(threading.current_thread)
    assert where is not threading.current_thread() and where.name.startswith("psf-copy")
    with pytest.raises(ValueError, match="invalid literal"):
        await in_thread(int, "x", base=10)


async def test_they_run_in_the_context_of_who_asks() -> None:
    variable = contextvars.ContextVar("variable", default=0)
    variable.set(1)
    assert await in_thread(variable.get) == 1


async def test_they_are_not_the_loops_own() -> None:
    gate, loop = threading.Event(), asyncio.get_running_loop()
    busy = [loop.run_in_executor(None, gate.wait, 30) for _ in range(40)]
    try:
        async with asyncio.timeout(10):
            assert await in_thread(sum, (1, 2)) == 3
    finally:
        gate.set()
        await asyncio.gather(*busy)
