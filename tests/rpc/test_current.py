"""The connection that running code belongs to: each task has its own, threads have that of who began them."""

import asyncio

from psframework.rpc.compute import compute
from psframework.rpc.current import current


async def test_none_outside_of_any() -> None:
    assert current.get() is None


async def test_each_task_has_its_own() -> None:
    met = asyncio.Barrier(2)

    async def run(mine: str) -> tuple[str, str]:
        token = current.set(mine)
        await met.wait()
        there = current.get(), await compute(current.get)
        current.reset(token)
        return there

    assert await asyncio.gather(run("a"), run("b")) == [("a", "a"), ("b", "b")]
    assert current.get() is None
