"""psf.Future: an asyncio.Future whose cancellation reaches the other side."""

import asyncio

import pytest

from psframework.rpc.functions.future import Future


async def test_it_can_be_awaited_again_by_many() -> None:
    future: Future[int] = Future(lambda: None)

    async def wait() -> int:
        return await future

    tasks = [asyncio.create_task(wait()) for _ in range(3)]
    await asyncio.sleep(0)
    assert not future.done()
    future.set_result(3)
    assert await asyncio.gather(*tasks, future) == [3] * 4 and future.result() == 3


async def test_cancelling_a_waiter_cancels_the_work_once() -> None:
    ended: list[int] = []
    future: Future[int] = Future(lambda: ended.append(1))

    async def wait() -> int:
        return await future

    task = asyncio.create_task(wait())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert future.cancelled() and ended == [1] and not future.cancel()


async def test_an_end_can_not_be_cancelled() -> None:
    ended: list[int] = []
    for settle in (lambda f: f.set_result(1), lambda f: f.set_exception(ValueError("x"))):
        future: Future[int] = Future(lambda: ended.append(1))
        settle(future)
        assert not future.cancel()
        future.exception()
    assert ended == []


async def test_wait_for_cancels_the_work() -> None:
    ended: list[int] = []
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(Future(lambda: ended.append(1)), 0.01)
    assert ended == [1]
