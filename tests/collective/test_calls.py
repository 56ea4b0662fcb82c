"""From arrays to operations and futures: threads, cancelling, devices, two operations in one."""

import asyncio
import threading

import numpy as np
import pytest
from groups import groups

from psframework import backend
from psframework.collective.arrays import HEAVY
from psframework.collective.calls import Calls
from psframework.errors import ArgumentError, CollectiveMismatch
from psframework.testing.strict_device import strict_devices


@pytest.fixture(params=[False, True], ids=["at once", "threaded"])
def threaded(request):
    return request.param


async def test_a_future_is_awaitable_again_and_again(threaded):
    async with groups(2, threaded=threaded) as (a, b):
        x, y = np.ones(3), np.ones(3)
        first, second = a.all_reduce(x), b.all_reduce(y)
        assert await first is x and await first is x and first.done() and first.result() is x
        assert (await asyncio.gather(first, second, first))[1] is y
        np.testing.assert_array_equal(x, [2, 2, 2])


async def test_what_ends_while_it_is_called_is_done_at_once():
    async with groups(2) as (a, b):
        a.all_reduce(np.ones(3))
        assert b.all_reduce(np.ones(3)).done(), "no turn of the loop"


async def test_results_are_settled_on_the_loop():
    async with groups(2, threaded=True) as (a, b):
        threads = []
        future = a.barrier()
        future.add_done_callback(lambda _: threads.append(threading.current_thread()))
        await b.barrier()
        await future
        await asyncio.sleep(0)
        assert threads == [threading.main_thread()]


async def test_a_cancelled_operation_runs_and_its_result_is_dropped(threaded):
    async with groups(2, threaded=threaded) as made:
        a, b = made
        x = np.ones(3)
        future = a.all_reduce(x)
        queued = a.all_gather(np.zeros(2))
        assert future.cancel() and queued.cancel() and not future.cancel()
        assert (await b.all_reduce(np.ones(3))).tolist() == [2, 2, 2]
        assert (await b.all_gather(np.ones(2))).tolist() == [[0, 0], [1, 1]]
        assert x.tolist() == [2, 2, 2]
        await asyncio.gather(a.barrier(), b.barrier())
        assert a.last_completed == b.last_completed == 3


async def test_a_task_that_is_cancelled_leaves_the_ranks_in_step():
    async with groups(2) as (a, b):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(a.barrier(), 0.02)
        await b.barrier()
        await asyncio.gather(a.barrier(), b.barrier())
        assert a.last_completed == 2


async def test_strided_arrays_queued_twice_build_on_each_other(threaded):
    """What was loaded when it was called would miss what the operation before wrote."""
    async with groups(2, threaded=threaded) as made:
        wide = [np.ones((HEAVY // 8, 2)) for _ in made]
        small = [np.ones((4, 2)) for _ in made]
        for arrays in (wide, small):
            ends = [group.all_reduce(array[:, 0]) for _ in range(3) for group, array in zip(made, arrays)]
            await asyncio.gather(*ends)
            for array in arrays:
                assert (array[:, 0] == 8).all() and (array[:, 1] == 1).all()


async def test_devices(threaded):
    with strict_devices("gpu-0") as (device,):
        async with groups(2, threaded=threaded) as made:
            arrays = [device.to_device(np.arange(8.0).reshape(4, 2) + rank) for rank in range(2)]
            host = [np.arange(8.0).reshape(4, 2) + rank for rank in range(2)]

            async def everywhere(call):
                return await asyncio.gather(*(call(group, arrays[group.rank]) for group in made))

            for got in await everywhere(lambda group, array: group.all_gather(array)):
                assert backend.device_of(got) == device.device
                np.testing.assert_array_equal(device.asnumpy(got), np.stack(host))
            halves = await everywhere(lambda group, array: group.reduce_scatter(array))
            np.testing.assert_array_equal(device.asnumpy(halves[1]), sum(host)[2:])
            parts = await everywhere(lambda group, array: group.scatter(array, 0))
            np.testing.assert_array_equal(device.asnumpy(parts[0]), host[0][:2])
            np.testing.assert_array_equal(parts[1], host[0][2:])
            columns = await everywhere(lambda group, array: group.all_reduce(array[:, 0]))
            assert columns[0].shape == (4,)
            for array in arrays:
                np.testing.assert_array_equal(device.asnumpy(array)[:, 0], sum(host)[:, 0])
            np.testing.assert_array_equal(device.asnumpy(arrays[1])[:, 1], host[1][:, 1])
            await everywhere(lambda group, array: group.broadcast(array, 1))
            np.testing.assert_array_equal(device.asnumpy(arrays[0]), device.asnumpy(arrays[1]))


async def test_a_device_s_array_and_the_host_s_together():
    with strict_devices("gpu-0") as (device,):
        async with groups(2) as (a, b):
            mine = device.to_device(np.ones(3))
            theirs, _ = await asyncio.gather(b.all_reduce(np.ones(3)), a.all_reduce(mine))
            np.testing.assert_array_equal(theirs, device.asnumpy(mine))


async def test_an_operation_of_two_lets_nothing_in_between(threaded):
    async with groups(2, threaded=threaded) as made:
        a, b = made
        mine, x = a.gather_object("short", 1), np.ones(2)
        more = a.all_reduce(x)
        assert await b.gather_object("longer" * 100, 1) == ["short", "longer" * 100]
        await b.all_reduce(np.ones(2))
        await asyncio.gather(mine, more)
        assert [each.split("(")[0] for each in made.table.order] == 2 * ["gather_object"] + ["all_reduce"]


async def test_an_operation_of_two_whose_first_half_fails():
    async with groups(2) as (a, b):
        mine = a.gather_object(1, 0)
        with pytest.raises(CollectiveMismatch):
            await b.barrier()
        with pytest.raises(CollectiveMismatch):
            await mine
        await asyncio.gather(a.barrier(), b.barrier())


async def test_deadlines():
    calls = Calls(None, asyncio.get_running_loop(), 5.0)
    assert 4 < calls.deadline(None).remaining() <= 5
    assert 1 < calls.deadline(2.0).remaining() <= 2
    assert calls.deadline(0).seconds() is None
    with pytest.raises(ArgumentError, match="timeout=-1"):
        calls.deadline(-1)
    assert Calls(None, asyncio.get_running_loop(), 0).deadline(None).seconds() is None
