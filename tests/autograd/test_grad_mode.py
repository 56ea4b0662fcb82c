import asyncio
import threading

import numpy as np

from psframework.autograd import enable_grad, is_grad_enabled, no_grad, tensor


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
