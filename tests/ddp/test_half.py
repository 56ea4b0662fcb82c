"""FP16 and BF16: half the bytes, and nothing is lost over time."""

import asyncio
from typing import Any

import numpy as np
import pytest
from hook_runs import bucket, gradients, run
from rank_tasks import RankGroup, on_ranks

from psframework.backend import Array, bfloat16
from psframework.ddp.hooks import BF16, FP16

BOTH = pytest.mark.parametrize(("hook", "half"), [(FP16, np.dtype(np.float16)), (BF16, bfloat16)])


@BOTH
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_bytes_and_values(hook: Any, half: Any, dtype: Any) -> None:
    runs = run(hook, dtype=dtype, steps=range(1))
    n = runs[0].gradients.size
    mean = sum(each.gradients.astype(half).astype(np.float32) for each in runs) / np.float32(3)
    np.testing.assert_array_equal(runs[0].averages[0], mean.astype(half).astype(dtype))
    stats = runs[1].hook.stats
    assert (stats.steps, stats.sent_bytes, stats.dense_bytes) == (1, 2 * n, np.dtype(dtype).itemsize * n)
    assert stats.ratio == 2 / np.dtype(dtype).itemsize
    assert runs[1].given == stats.sent_bytes


@BOTH
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_sent_and_residual_are_the_sum_of_the_gradients(hook: Any, half: Any, dtype: Any) -> None:
    """Of each rank: the average of what is sent is rounded once more, alike on all."""

    class Noting(RankGroup):
        sent: Array | float = 0.0

        def all_reduce(self, array: Any, *args: Any) -> Any:
            assert array.dtype == half
            self.sent = self.sent + array.astype(np.float64)
            return super().all_reduce(array, *args)

    async def rank(group: Any) -> float:
        group.__class__ = Noting
        mine, total = hook(), np.zeros(1)
        for step in range(20):
            buffer = gradients(dtype, group.rank, step)
            total = total + buffer
            await mine(bucket(buffer, group))
        residual = mine._residuals.of(bucket(buffer, group))
        assert np.abs(residual).max() > 1e-5
        return float(np.abs(group.sent + residual - total).max())

    assert max(asyncio.run(on_ranks(2, rank))) < (1e-6 if dtype is np.float32 else 1e-13) * 10


@BOTH
def test_without_error_feedback_nothing_is_kept(hook: Any, half: Any) -> None:
    runs = run(lambda: hook(error_feedback=False))
    assert runs[0].hook.residuals() == {}
    last = sum(gradients(np.float32, rank, 5).astype(half).astype(np.float32) for rank in range(3))
    np.testing.assert_array_equal(runs[0].averages[-1], (last / np.float32(3)).astype(half))


@BOTH
def test_a_step_that_overflows_leaves_the_residual(hook: Any, half: Any) -> None:
    def spoil(buffer: Array, rank: int, step: int) -> None:
        if step == 1 and rank == 2:
            buffer[:3] = np.inf, np.nan, -np.inf

    spoilt = run(hook, steps=range(3), spoil=spoil)
    assert not np.isfinite(spoilt[0].averages[1]).all()
    skipped = run(hook, steps=(0, 2))
    np.testing.assert_array_equal(spoilt[0].averages[2], skipped[0].averages[1])
    for rank in range(3):
        for name, residual in spoilt[rank].hook.residuals().items():
            np.testing.assert_array_equal(residual, skipped[rank].hook.residuals()[name])


def test_16_bits_are_sent_as_they_are() -> None:
    runs = run(BF16, dtype=np.float16)
    assert runs[0].hook.stats.ratio == 1
    mean = sum(gradients(np.float16, rank, 0).astype(np.float32) for rank in range(3)) / np.float32(3)
    np.testing.assert_array_equal(runs[0].averages[0], mean.astype(np.float16))
