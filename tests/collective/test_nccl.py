"""CuPy arrays over NCCL, as far as that can be told without a GPU: calls, their numbers, and errors."""

import asyncio

import numpy as np
import pytest
from fake_nccl import FakeCupy, GpuArray, Stream, on_gpu
from groups import groups

from psframework import backend
from psframework.backend import platforms
from psframework.backend.cuda import CudaPlatform
from psframework.collective.descriptor import Descriptor, Operation
from psframework.collective.nccl import carries
from psframework.collective.ops import ReduceOp
from psframework.errors import CollectiveMismatch, ConfigurationError, DeadlineExceeded

SIZE = 3


@pytest.fixture
def cupy(monkeypatch):
    module = FakeCupy()
    known = platforms.platform_named("cuda")
    module.install(monkeypatch)
    yield module
    backend.forget_namespace(GpuArray)
    backend.forget_platform(platforms.platform_named("cuda"))
    backend.register_platform(known if known is not None else CudaPlatform())


@pytest.fixture
async def made(cupy):
    async with groups(SIZE, threaded=True) as made:
        await asyncio.gather(*(group.use_nccl() for group in made))
        yield made


async def everywhere(made, call):
    return await asyncio.gather(*(call(group) for group in made))


def calls(cupy) -> list[str]:
    (world,) = cupy.cuda.nccl.worlds.values()
    found, world.calls[:] = sorted(set(world.calls)), []
    return found


@pytest.mark.parametrize("dtype", ["int8", "int32", "int64", "uint8", "uint32", "uint64", "float16",
                                   "bfloat16", "float32", "float64", "complex64", "complex128"])  # fmt: skip
@pytest.mark.parametrize("shape", [(), (6, 2), (0, 2)])
async def test_sums(cupy, made, dtype, shape):
    kind = backend.dtype_from_name(dtype)
    host = [(np.arange(np.prod(shape, dtype=int)).reshape(shape) + rank).astype(kind) for rank in range(SIZE)]
    arrays = [on_gpu(each) for each in host]
    total = sum(each.astype("complex128") for each in host)
    got = await everywhere(made, lambda group: group.all_reduce(arrays[group.rank]))
    for mine, array in zip(got, arrays, strict=True):
        assert mine is array and mine.dtype == kind
        np.testing.assert_array_equal(mine.astype("complex128"), total)
    assert calls(cupy) == ["allReduce"]
    if shape:
        halves = await everywhere(made, lambda group: group.reduce_scatter(on_gpu(host[group.rank])))
        np.testing.assert_array_equal(np.concatenate(halves).astype("complex128"), total)
        assert calls(cupy) == ["reduceScatter"] and type(halves[0]) is GpuArray


@pytest.mark.parametrize("op", [ReduceOp.AVG, ReduceOp.PRODUCT, ReduceOp.MIN, ReduceOp.MAX])
async def test_other_reductions(cupy, made, op):
    host = [np.array([1.5, -2.0, 3.0]) * (rank + 1) for rank in range(SIZE)]
    wanted = {
        ReduceOp.AVG: np.mean, ReduceOp.PRODUCT: np.prod, ReduceOp.MIN: np.min, ReduceOp.MAX: np.max,
    }[op](host, axis=0)  # fmt: skip
    arrays = [on_gpu(each) for each in host]
    await everywhere(made, lambda group: group.reduce(arrays[group.rank], 1, op))
    np.testing.assert_array_equal(arrays[1], wanted)
    np.testing.assert_array_equal(arrays[0], host[0])
    assert calls(cupy) == ["reduce"]


async def test_moves(cupy, made):
    host = [np.arange(6.0).reshape(3, 2) + 10 * rank for rank in range(SIZE)]
    got = await everywhere(made, lambda group: group.all_gather(on_gpu(host[group.rank])))
    np.testing.assert_array_equal(got[1], np.stack(host))
    assert calls(cupy) == ["allGather"]
    got = await everywhere(made, lambda group: group.gather(on_gpu(host[group.rank]), 2))
    np.testing.assert_array_equal(got[2], np.stack(host))
    assert got[0] is None and calls(cupy) == ["send"]
    got = await everywhere(made, lambda group: group.all_to_all(on_gpu(host[group.rank])))
    np.testing.assert_array_equal(got[1], np.stack([each[1] for each in host]))
    columns = [on_gpu(each) for each in host]
    calls(cupy)
    await everywhere(made, lambda group: group.broadcast(columns[group.rank][:, 0], 1))
    assert calls(cupy) == ["bcast"]
    for rank in range(SIZE):
        np.testing.assert_array_equal(columns[rank][:, 0], host[1][:, 0])
        np.testing.assert_array_equal(columns[rank][:, 1], host[rank][:, 1])


async def test_host_arrays_and_the_rest_go_the_usual_way(cupy, made):
    await everywhere(made, lambda group: group.all_reduce(np.ones(3)))
    got = await everywhere(made, lambda group: group.broadcast_object([group.rank], 1))
    assert got == [[1]] * SIZE and calls(cupy) == []


async def test_what_is_queued_on_the_gpu_comes_first(cupy, made):
    before = cupy.settled
    await everywhere(made, lambda group: group.all_reduce(on_gpu(np.ones(3))))
    assert cupy.settled == before + SIZE


async def test_differences_are_found_before_nccl_hangs(cupy, made):
    calls_of = [
        lambda group: group.all_reduce(on_gpu(np.ones(3))),
        lambda group: group.all_reduce(np.ones(3)),
        lambda group: group.all_reduce(on_gpu(np.ones(4))),
    ]
    for result in await asyncio.gather(
        *(calls_of[group.rank](group) for group in made), return_exceptions=True
    ):
        assert isinstance(result, CollectiveMismatch) and "cuda all_reduce float64" in str(result)
    assert calls(cupy) == []
    await everywhere(made, lambda group: group.all_reduce(on_gpu(np.ones(3))))


async def test_a_gpu_that_does_not_come_back(cupy, made):
    for group in made:
        group._calls.nccl._stream = Stream(stuck=True)
    futures = [group.all_reduce(on_gpu(np.ones(3)), timeout=0.1) for group in made]
    for future in futures:
        with pytest.raises(DeadlineExceeded):
            await future
    (world,) = cupy.cuda.nccl.worlds.values()
    assert world.aborted >= 1


async def test_without_nccl(monkeypatch):
    monkeypatch.setattr(backend, "cupy", lambda: None)
    async with groups(2) as (a, b):
        other = b.broadcast_object(None, 0)
        with pytest.raises(ConfigurationError, match="NCCL needs a GPU"):
            await a.use_nccl()
        with pytest.raises(CollectiveMismatch, match=r"rank 0 \(trainer-0\): no NCCL"):
            await other
        await asyncio.gather(a.barrier(), b.barrier())


def test_what_nccl_has():
    def said(operation, dtype="float32", op=None):
        return carries(Descriptor(1, operation, dtype, (2,), op))

    assert said(Operation.ALL_REDUCE, op=ReduceOp.SUM) and said(Operation.BROADCAST, "bool")
    assert not said(Operation.ALL_REDUCE, "int16", ReduceOp.SUM)
    assert not said(Operation.ALL_REDUCE, "bool", ReduceOp.SUM)
    assert not said(Operation.ALL_REDUCE, "int32", ReduceOp.BAND)
    assert not said(Operation.ALL_REDUCE, "complex64", ReduceOp.PRODUCT)
    assert not said(Operation.SCATTER) and not said(Operation.BARRIER, "")
