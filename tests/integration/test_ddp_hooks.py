"""Communication hooks, sparse gradients and loss scaling under DistributedDataParallel, on real processes.

Cases of others (CASES.md): pytorch#30807, sparse gradients: test_a_sparse_table_equals_a_dense_one.
"""

from collections.abc import AsyncIterator
from typing import Any

import hook_functions as functions
import numpy as np
import pytest

import psframework as psf

WORKERS = ["worker-0", "worker-1", "worker-2"]


@pytest.fixture(scope="module")
async def cluster() -> AsyncIterator[psf.Cluster]:
    async with (
        psf.local_cluster(workers=len(WORKERS), imports=["hook_functions"]) as local,
        psf.connect(local.address, name="caller") as cluster,
    ):
        yield cluster


async def on(cluster: psf.Cluster, size: int, function: Any, *args: Any) -> list[Any]:
    return await cluster.rpc_all(WORKERS[:size], function, (size, *args), timeout=500.0)


RATIOS = {"FP16": 0.5, "BF16": 0.5, "PowerSGD": 0.12, "TopK": 0.0215}


@pytest.fixture(scope="module")
async def plain(cluster: psf.Cluster) -> float:
    """How many of the test images are right without a hook, in percent."""
    first, _ = await on(cluster, 2, functions.digits, "none", 40)
    assert first["accuracy"] > 95.5
    return float(first["accuracy"])


@pytest.mark.parametrize("hook", RATIOS)
async def test_accuracy_is_that_of_the_plain_average(cluster: psf.Cluster, plain: float, hook: str) -> None:
    """Within half a point: of 360 images, one."""
    first, second = await on(cluster, 2, functions.digits, hook, 40)
    assert first["digest"] == second["digest"], "ranks differ in a bit"
    assert first["accuracy"] >= plain - 0.5
    assert first["ratio"] <= RATIOS[hook]
    assert first["steps"] == 40 * 22


async def test_a_users_hook_does_what_ours_does(cluster: psf.Cluster) -> None:
    ours, own = [await on(cluster, 2, functions.digits, hook, 1) for hook in ("FP16 without feedback", "own")]
    assert len({each["digest"] for each in (*ours, *own)}) == 1


@pytest.mark.parametrize("hook", ["PowerSGD", "TopK"])
async def test_sent_and_residual_are_the_sum_of_the_gradients(cluster: psf.Cluster, hook: str) -> None:
    """Also over the buckets' new order after the first step."""
    ranks = await on(cluster, 3, functions.owed, hook, 14)
    for name in ranks[0]:
        gradients, arrived, residuals = (np.mean([rank[name][i] for rank in ranks], axis=0) for i in range(3))
        assert np.abs(gradients).max() > 1e-3
        np.testing.assert_allclose(arrived + residuals, gradients, atol=1e-6)
        for rank in ranks[1:]:
            np.testing.assert_array_equal(rank[name][1], ranks[0][name][1])


async def test_a_hook_that_fails_on_one_rank_fails_on_all(cluster: psf.Cluster) -> None:
    texts = await on(cluster, 3, functions.failing)
    assert texts[1].startswith("ZeroDivisionError: the hook of rank 1")
    for text in (texts[0], texts[2]):
        assert text.startswith("CollectiveMismatch")
        assert "the hook of rank 1" in text


@pytest.mark.parametrize("size", [2, 3])
async def test_a_sparse_table_equals_a_dense_one(cluster: psf.Cluster, size: int) -> None:
    expected = functions.serial_sparse(4)
    for rank in await on(cluster, size, functions.sparse, False):
        assert rank["kinds"] == {"SparseRows"}
        for name, array in rank["state"].items():
            np.testing.assert_allclose(array, expected[name], atol=1e-6)


async def test_ranks_agree_on_a_step_that_overflowed(cluster: psf.Cluster) -> None:
    """The average is not finite anywhere if one rank's gradients aren't: nobody needs to ask."""
    expected = functions.serial_sparse(3)
    ranks = await on(cluster, 3, functions.sparse, True)
    for rank in ranks:
        assert rank["taken"] == [True, False, True, True]
        assert rank["scale"] == 2.0
        for name, array in rank["state"].items():
            np.testing.assert_allclose(array, expected[name], atol=1e-6)
            assert array.tobytes() == ranks[0]["state"][name].tobytes()


@pytest.mark.soak
@pytest.mark.parametrize("hook", ["FP16", "BF16", "PowerSGD", "TopK"])
async def test_accuracy_over_more_epochs_and_ranks(cluster: psf.Cluster, hook: str) -> None:
    plain = await on(cluster, 3, functions.digits, "none", 120)
    found = await on(cluster, 3, functions.digits, hook, 120)
    assert len({each["digest"] for each in found}) == 1
    assert found[0]["accuracy"] >= plain[0]["accuracy"] - 0.5
