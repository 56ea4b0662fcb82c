"""TopK: the largest gradients, and what waits."""

from typing import Any

import numpy as np
import pytest
from hook_runs import owed, run
from losing import Losing, complaints

import psframework as psf
from psframework.backend import Array
from psframework.ddp.hooks import Bucket, TopK
from psframework.ddp.top_k import average, largest
from psframework.errors import PeerLost


def test_largest() -> None:
    array = np.array([0.5, -3, 2, np.nan, 0, -2.5])
    assert largest(array, 3).tolist() == [1, 3, 5]
    assert largest(array, 6).tolist() == largest(array, 9).tolist() == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("count", [1, 700, 7000, 60_000])
@pytest.mark.parametrize("kind", ["normal", "sparse", "equal", "one column", "nan"])
def test_largest_of_many_is_exact(count: int, kind: str) -> None:
    """A sample may be of any quality: of nothing but zeros, or of the largest."""
    array = np.random.default_rng(0).standard_normal(70_000).astype(np.float32)
    if kind == "sparse":
        array[np.arange(70_000) % 61 == 0] = 0
        array[500:] = 0
    elif kind == "equal":
        array[:] = 1
    elif kind == "one column":
        array[np.arange(70_000) % 61 == 0] *= 100
    elif kind == "nan":
        array[::3] = np.nan
    found = largest(array, count)
    assert len(np.unique(found)) == count
    assert (np.diff(found) > 0).all()
    magnitudes = np.nan_to_num(np.abs(array), nan=np.inf)
    rest = np.delete(magnitudes, found)
    assert magnitudes[found].min() >= rest.max()


async def test_a_loss_is_told_once() -> None:
    with complaints() as heard:
        bucket = Bucket(0, np.ones(4), [psf.nn.Parameter(np.ones(4))], ["w"], [0], Losing(0))
        with pytest.raises(PeerLost):
            await TopK(0.5)(bucket)
    assert not heard


def test_average_adds_what_ranks_sent() -> None:
    buffer = np.full(4, 9.0, np.float32)
    average(buffer, np.array([[0, 2], [2, 3]]), np.array([[1, 2], [4, 8]], np.float32))
    assert buffer.tolist() == [0.5, 0, 3, 4]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("ratio", [0.01, 0.3, 1.0])
def test_sent_and_residual_are_the_sum_of_the_gradients(dtype: Any, ratio: float) -> None:
    runs = run(lambda: TopK(ratio), dtype=dtype)
    assert np.abs(owed(runs)).max() < (1e-6 if dtype is np.float32 else 1e-14)
    stats = runs[0].hook.stats
    assert stats.sent_bytes == runs[0].given
    assert stats.ratio == pytest.approx(ratio * (1 + 4 / np.dtype(dtype).itemsize), rel=0.05)


def test_16_bits_lose_no_more_than_the_average_does() -> None:
    runs = run(lambda: TopK(0.1), dtype=np.float16)
    assert np.abs(owed(runs)).max() < 6 * 2**-10


def test_one_of_all_is_the_plain_average() -> None:
    runs = run(lambda: TopK(1.0), steps=range(1), dtype=np.float64)
    np.testing.assert_allclose(runs[0].averages[0], sum(each.gradients for each in runs) / 3, atol=1e-15)
    assert not any(residual.any() for residual in runs[0].hook.residuals().values())


def test_a_step_that_overflows_leaves_the_residual() -> None:
    def spoil(buffer: Array, rank: int, step: int) -> None:
        if step == 2 and rank == 1:
            buffer[::2] = np.inf

    spoilt, skipped = run(lambda: TopK(0.05), spoil=spoil), run(lambda: TopK(0.05), steps=(0, 1, 3, 4, 5))
    assert not np.isfinite(spoilt[0].averages[2]).all()
    np.testing.assert_array_equal(spoilt[0].averages[-1], skipped[0].averages[-1])


@pytest.mark.parametrize("ratio", [0, -0.1, 1.5])
def test_ratio_is_checked(ratio: float) -> None:
    with pytest.raises(psf.ArgumentError, match="ratio"):
        TopK(ratio)
