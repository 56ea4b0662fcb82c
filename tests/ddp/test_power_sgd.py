"""PowerSGD: thin products of the right matrices, warm start, error feedback."""

from typing import Any

import numpy as np
import pytest
from hook_runs import SHAPES, bucket, gradients, owed, run, starts

import psframework as psf
from psframework.backend import Array
from psframework.ddp.hooks import PowerSGD
from psframework.errors import CollectiveMismatch

DENSE = sum(int(np.prod(shape)) for shape in (SHAPES["b"], SHAPES["d"])) + 2 * 4
THIN = 2 * ((60 + 40) + (8 + 36))


def test_the_first_steps_are_plain_averages() -> None:
    runs = run(lambda: PowerSGD(start=3), steps=range(3), dtype=np.float64)
    mean = sum(gradients(np.float64, rank, 2) for rank in range(3)) / 3
    np.testing.assert_allclose(runs[0].averages[2], mean, atol=1e-15)
    assert runs[0].hook.stats.ratio == 1
    assert runs[0].hook.residuals() == {}


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("rank", [1, 2, 4])
def test_sent_and_residual_are_the_sum_of_the_gradients(dtype: Any, rank: int) -> None:
    runs = run(lambda: PowerSGD(rank, start=1), dtype=dtype, steps=range(8))
    assert np.abs(owed(runs)).max() < (2e-6 if dtype is np.float32 else 1e-14)
    assert runs[0].hook.stats.sent_bytes == runs[0].given < runs[0].hook.stats.dense_bytes


def test_bytes_are_those_of_thin_matrices_and_of_what_is_dense() -> None:
    runs = run(lambda: PowerSGD(2, start=0), steps=range(2))
    assert runs[0].hook.stats.sent_bytes == 2 * 4 * (DENSE + THIN)


def test_matrices_of_that_rank_come_through_whole() -> None:
    """Also where one is 0, or of a lower rank, in between: no direction is lost for good."""
    rng = np.random.default_rng(0)
    p, q = rng.standard_normal((2, 60)), rng.standard_normal((2, 40))

    def spoil(buffer: Array, rank: int, step: int) -> None:
        matrix, _, other, _ = bucket(buffer, None).views()
        other[...] = 0
        matrix[...] = 0 if step == 1 else p[:1].T @ q[:1] if step == 2 else (p * (rank + 1)).T @ q

    runs = run(lambda: PowerSGD(2, start=0), spoil=spoil, dtype=np.float64, steps=range(5))
    for step, expected in enumerate([2 * p.T @ q, 0 * p.T @ q, p[:1].T @ q[:1], 2 * p.T @ q, 2 * p.T @ q]):
        matrix = bucket(runs[0].averages[step], None).views()[0]
        np.testing.assert_allclose(matrix, expected, atol=1e-12)


def test_gradients_that_stay_the_same_arrive_in_time() -> None:
    """All singular vectors get their turn, though each step sends two."""
    constant = gradients(np.float64, 0, 0)

    def same(buffer: Array, rank: int, step: int) -> None:
        buffer[:] = constant

    runs = run(lambda: PowerSGD(2, start=0), spoil=same, dtype=np.float64, steps=range(200), size=1)
    total = np.sum(runs[0].averages, axis=0)
    error = np.abs(total / 200 - constant).max() / np.abs(constant).max()
    assert error < 0.2


def test_a_step_that_overflows_leaves_residual_and_direction() -> None:
    def spoil(buffer: Array, rank: int, step: int) -> None:
        if step == 2 and rank == 1:
            buffer[5] = np.nan

    spoilt = run(lambda: PowerSGD(start=0), spoil=spoil, steps=range(5))
    skipped = run(lambda: PowerSGD(start=0), steps=(0, 1, 3, 4))
    assert not np.isfinite(spoilt[0].averages[2]).all()
    np.testing.assert_array_equal(spoilt[0].averages[-1], skipped[0].averages[-1])


@pytest.mark.parametrize("start", [0, 5])
async def test_a_step_that_failed_before_anything_was_averaged_does_not_count(start: int) -> None:
    """Another rank may not have come to its hook: then ranks would begin to compress in different steps."""

    class Failing:
        async def all_reduce(self, array: Array, op: Any) -> None:
            raise CollectiveMismatch("another rank failed")

    hook = PowerSGD(start=start)
    given = bucket(gradients(np.float32, 0, 0), Failing())
    with pytest.raises(CollectiveMismatch):
        await hook(given)
    assert hook.state_dict()["step"] == 0


def test_small_parameters_alone_are_averaged_as_they_are() -> None:
    runs = run(lambda: PowerSGD(rank=30, start=0), dtype=np.float64, steps=range(1))
    np.testing.assert_allclose(runs[0].averages[0], sum(each.gradients for each in runs) / 3, atol=1e-15)
    assert runs[0].hook.stats.ratio == 1


def test_16_bits() -> None:
    runs = run(lambda: PowerSGD(start=0), dtype=np.float16)
    assert np.abs(owed(runs)).max() < 6 * 2**-10


def test_arguments_and_state_are_checked() -> None:
    with pytest.raises(psf.ArgumentError, match="rank"):
        PowerSGD(0)
    state = run(lambda: PowerSGD(2, start=0), steps=range(1), size=1)[0].hook.state_dict()
    other = PowerSGD(3, start=0)
    other.load_state_dict(state)
    with pytest.raises(psf.ArgumentError, match=r"q of shape \(2, 40\) for a, not \(3, 40\)"):
        other._matrix("a", 0, SHAPES["a"], np.zeros(starts()[-1]), 1)
