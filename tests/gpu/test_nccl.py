"""NCCL on a real device: one rank on one GPU; not run yet. Several GPUs are unverified."""

import numpy as np
import pytest
from groups import groups

from psframework import backend
from psframework.collective.ops import ReduceOp

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int32", "complex64"])
async def test_one_rank_is_the_identity(device, dtype):
    host = np.arange(12).reshape(4, 3).astype(dtype)
    with device:
        async with groups(1) as (group,):
            await group.use_nccl()
            there = backend.to_device(host, device)
            strided = backend.to_device(np.repeat(host, 2, axis=1), device)[:, ::2]
            for array in (there, strided):
                assert await group.all_reduce(array) is array
                await group.broadcast(array, 0)
                await group.reduce(array, 0, ReduceOp.SUM)
                np.testing.assert_array_equal(backend.asnumpy(array), host)
                for result in (await group.reduce_scatter(array), await group.all_to_all(array)):
                    assert backend.device_of(result) == device
                    np.testing.assert_array_equal(backend.asnumpy(result), host)
                for result in (await group.all_gather(array), await group.gather(array, 0)):
                    np.testing.assert_array_equal(backend.asnumpy(result), host[None])


async def test_work_of_another_stream_comes_first(device):
    with device:
        async with groups(1) as (group,):
            await group.use_nccl()
            stream = backend.stream(device)
            with stream:
                array = backend.to_device(np.ones(8_000_000, np.float32), device, stream=stream)
                for _ in range(20):
                    array = array * 2
                await group.all_reduce(array)
            assert float(backend.asnumpy(array)[0]) == 2.0**20
