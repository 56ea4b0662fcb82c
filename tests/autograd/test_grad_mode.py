import asyncio
import threading

import numpy as np
import pytest

from psframework.autograd import enable_grad, is_grad_enabled, no_grad, tensor
from psframework.errors import ArgumentError


def test_nesting():
    t = tensor(np.ones(2), True)
    with no_grad():
        assert not is_grad_enabled() and not (t * 2).requires_grad
        with enable_grad():
            assert (t * 2).requires_grad
        assert not is_grad_enabled()
    assert is_grad_enabled()


def test_an_exception_restores_the_mode():
    try:
        with no_grad():
            raise KeyError
    except KeyError:
        assert is_grad_enabled()


def test_one_block_object_used_again_and_inside_itself():
    block = no_grad()
    with block, block:
        assert not is_grad_enabled()
    assert is_grad_enabled()


def test_decorator():
    @no_grad()
    def count(n):
        assert not is_grad_enabled()
        return n if n == 0 else count(n - 1)

    assert count(3) == 0 and is_grad_enabled()
    assert count.__name__ == "count"


async def test_decorated_coroutines():
    @no_grad()
    async def without():
        await asyncio.sleep(0)
        return is_grad_enabled()

    assert not await without() and is_grad_enabled()


def test_decorated_generators_leave_the_mode_to_their_user():
    modes, ended = [], []

    @no_grad()
    def steps(n):
        try:
            for i in range(n):
                try:
                    modes.append(((yield i), is_grad_enabled()))
                except KeyError:
                    modes.append(("thrown", is_grad_enabled()))
            return "done"
        finally:
            ended.append(is_grad_enabled())

    run = steps(3)
    assert next(run) == 0 and is_grad_enabled()
    assert run.send("sent") == 1 and is_grad_enabled()
    assert run.throw(KeyError()) == 2 and is_grad_enabled()
    with pytest.raises(StopIteration) as info:
        next(run)
    assert info.value.value == "done" and is_grad_enabled()
    assert modes == [("sent", False), ("thrown", False), (None, False)] and ended == [False]
    closed = steps(3)
    next(closed)
    closed.close()
    assert ended == [False, False] and is_grad_enabled()


def test_an_async_generator_is_not_decorated_in_vain():
    async def steps():
        yield

    with pytest.raises(ArgumentError, match=r"no_grad.* on an async generator: write `with` inside"):
        no_grad()(steps)


async def test_tasks_do_not_disturb_each_other():
    inside, checked = asyncio.Event(), asyncio.Event()

    async def without():
        with no_grad():
            inside.set()
            await asyncio.wait_for(checked.wait(), 5)
            return is_grad_enabled()

    async def beside():
        await asyncio.wait_for(inside.wait(), 5)
        enabled = is_grad_enabled()
        checked.set()
        return enabled

    assert await asyncio.gather(without(), beside()) == [False, True]


def test_threads_start_enabled():
    seen = []
    with no_grad():
        thread = threading.Thread(target=lambda: seen.append(is_grad_enabled()))
        thread.start()
        thread.join(5)
    assert seen == [True]
