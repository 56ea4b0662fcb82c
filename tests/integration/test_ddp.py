"""DistributedDataParallel of real processes, over shared memory and over the network."""

from collections.abc import AsyncIterator
from itertools import count
from typing import Any

import ddp_functions as functions
import numpy as np
import pytest

import psframework as psf
from psframework.nn import functional as F

WORKERS = [f"worker-{index}" for index in range(3)]
numbers = count()
LANES = {"shm": None, "direct": "inline,striped"}


@pytest.fixture(scope="module", params=sorted(LANES))
async def stage(request: Any) -> AsyncIterator[tuple[str, psf.Cluster]]:
    """The transport that groups will have, and a connection."""
    lanes = LANES[request.param]
    async with (
        psf.local_cluster(workers=len(WORKERS), imports=["ddp_functions"], lanes=lanes) as local,
        psf.connect(local.address, name="caller") as cluster,
    ):
        yield request.param, cluster


async def everywhere(stage: tuple[str, psf.Cluster], size: int, function: Any, *args: Any) -> list[Any]:
    """Calls it on so many ranks, of a group of their own."""
    return await stage[1].rpc_all(
        WORKERS[:size], function, (f"ddp-{next(numbers)}", size, *args), timeout=60.0
    )


def same(one: dict[str, Any], other: dict[str, Any], rtol: float = 0.0) -> None:
    assert one.keys() == other.keys()
    for name in one:
        np.testing.assert_allclose(one[name], other[name], rtol=rtol, atol=rtol, err_msg=name)


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("options", [{}, {"find_unused_parameters": True, "static_graph": True}], ids=str)
async def test_50_steps_equal_one_process_with_the_whole_batch(stage: Any, size: int, options: Any) -> None:
    ranks = await everywhere(stage, size, functions.train, 50, "float64", options)
    expected = functions.alone(size, 50)
    for rank in ranks:
        assert rank["transport"] == stage[0]
        assert rank["buckets"] > 1
        same(rank["state"], expected, rtol=1e-12)
        same(rank["state"], ranks[0]["state"])


async def test_float32_is_the_same_on_all_ranks_to_the_bit(stage: Any) -> None:
    ranks = await everywhere(stage, 3, functions.train, 50, "float32", {})
    for rank in ranks:
        for name, array in rank["state"].items():
            assert array.tobytes() == ranks[0]["state"][name].tobytes()
    same(ranks[0]["state"], functions.alone(3, 50, np.float32), rtol=1e-3)


@pytest.mark.parametrize("divide", [True, False])
async def test_10_batches_against_11_and_12(stage: Any, divide: bool) -> None:
    ranks = await everywhere(stage, 3, functions.uneven, divide)
    assert [rank["steps"] for rank in ranks] == [10, 11, 12]
    model = functions.Net()
    optimizer = functions.optimizer_of(model)
    for step in range(12):
        active = [rank for rank in range(3) if step < 10 + rank]
        losses = [F.cross_entropy(model(x), y) for x, y in (functions.batch(rank, step) for rank in active)]
        total: Any = sum(losses)
        (total / (3 if divide else len(active))).backward()
        optimizer.step()
        optimizer.zero_grad()
    for rank in ranks:
        same(rank["state"], model.state_dict(), rtol=1e-12)
        same(rank["state"], ranks[0]["state"])


async def test_an_unused_parameter_is_handled_if_asked_for(stage: Any) -> None:
    ranks = await everywhere(stage, 2, functions.unused, True)
    model = functions.Net()
    optimizer = functions.optimizer_of(model)
    for step in range(3):
        batches = [functions.batch(rank, step) for rank in range(2)]
        losses = [
            F.cross_entropy(model(x, extra=not (step == 1 and rank == 1)), y)
            for rank, (x, y) in enumerate(batches)
        ]
        ((losses[0] + losses[1]) / 2).backward()
        optimizer.step()
        optimizer.zero_grad()
    for rank in ranks:
        assert rank["errors"] == []
        same(rank["state"], model.state_dict(), rtol=1e-12)


@pytest.mark.parametrize("size", [2, 3])
async def test_an_unused_parameter_is_an_error_in_that_step_on_all_ranks(stage: Any, size: int) -> None:
    ranks = await everywhere(stage, size, functions.unused, False)
    for rank in ranks:
        first = rank["errors"][0]
        assert first["type"] == "CollectiveMismatch"
        assert "rank 1 (worker-1)" in first["text"] and "'extra.weight', 'extra.bias'" in first["text"]
    assert [len(rank["errors"]) for rank in ranks] == [1] * size
    for rank in ranks[1:]:
        same(rank["state"], ranks[0]["state"])


async def test_one_more_parameter_on_rank_1(stage: Any) -> None:
    """pytorch#68803."""
    for error in await everywhere(stage, 3, functions.other_model):
        assert error["type"] == "ModelMismatch"
        assert "rank 1 (worker-1) has parameter 'more.weight', float32 (2, 3), which rank 0" in error["text"]


async def test_forward_and_backward_before_it_was_awaited(stage: Any) -> None:
    for errors in await everywhere(stage, 2, functions.too_early):
        assert [each["type"] for each in errors] == ["ArgumentError"] * 2
        assert all("was not awaited" in each["text"] for each in errors)


async def test_accumulated_gradients_equal_those_of_one_big_batch(stage: Any) -> None:
    ranks = await everywhere(stage, 3, functions.accumulate, 4)
    model = functions.Net()
    xs, ys = zip(*[functions.whole(3, step) for step in range(4)])
    F.cross_entropy(model(np.concatenate(xs)), np.concatenate(ys)).backward()
    expected = {name: parameter.grad for name, parameter in model.named_parameters()}
    for rank in ranks:
        same(rank, expected, rtol=1e-12)
        same(rank, ranks[0])


async def test_buffers_are_equal_on_all_ranks(stage: Any) -> None:
    ranks = await everywhere(stage, 3, functions.buffers)
    assert int(ranks[0]["norm.num_batches_tracked"]) == 5
    assert np.abs(ranks[0]["norm.running_mean"]).sum() > 0
    for rank in ranks:
        same(rank, ranks[0])


async def test_nothing_is_left(stage: Any) -> None:
    for rank in await everywhere(stage, 2, functions.leaves_nothing):
        assert rank == {"alive": [False] * 3, "mapped": 0}


@pytest.mark.parametrize("transport", sorted(LANES))
async def test_a_rank_dies_in_the_middle_of_a_backward_and_the_others_go_on(transport: str) -> None:
    async with (
        psf.local_cluster(workers=3, imports=["ddp_functions"], lanes=LANES[transport]) as local,
        psf.connect(local.address, name="caller") as cluster,
    ):
        calls = [
            cluster.rpc_async(name, functions.until_one_dies, ("dying", 3, 1), timeout=60.0)
            for name in WORKERS
        ]
        with pytest.raises(psf.PeerLost):
            await calls[1]
        survivors = [await calls[0], await calls[2]]
    for rank in survivors:
        assert rank["told"]["type"] == "PeerLost" and rank["told"]["peer"] == "worker-1"
        assert "rank 1 (worker-1)" in rank["told"]["text"]
        assert rank["size"] == 2
        same(rank["state"], survivors[0]["state"])
