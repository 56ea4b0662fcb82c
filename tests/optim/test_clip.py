"""Clipping: torch's results, and the same ones when the gradients lie in shards."""

import itertools
import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from psframework import backend, nn
from psframework.autograd.sparse import SparseRows
from psframework.autograd.tensor import Tensor
from psframework.errors import ArgumentError
from psframework.optim import (
    GlobalNorm,
    clip_coefficient,
    clip_grad_norm_,
    clip_grad_value_,
    scale_,
    set_update_threads,
    squared_norm,
    update_threads,
)
from psframework.optim.blocks import BLOCK
from psframework.testing.strict_device import StrictDevice

NORMS = [1.0, 2.0, 3.0, math.inf]


def parameters(*gradients: Any) -> list[Tensor]:
    made = []
    for gradient in gradients:
        made.append(Tensor(np.zeros(gradient.shape, gradient.dtype), requires_grad=True))
        made[-1].grad = gradient
    return made


def some(seed: int = 0, dtype: Any = np.float32) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [np.asarray(10 * rng.standard_normal(shape)).astype(dtype) for shape in ((4, 3), (7,), (), (0, 2))]


@pytest.mark.oracle
@pytest.mark.parametrize("norm_type", NORMS)
@pytest.mark.parametrize("max_norm", [0.0, 1.0, 1e6])
def test_equals_torch(norm_type: float, max_norm: float) -> None:
    torch = pytest.importorskip("torch")
    mine = [*parameters(*some(dtype=np.float64)[:3]), Tensor(np.zeros(3), requires_grad=True)]
    theirs = [torch.nn.Parameter(torch.tensor(p.data)) for p in mine]
    for p, q in zip(mine[:-1], theirs):
        q.grad = torch.tensor(p.grad)
    total = clip_grad_norm_(mine, max_norm, norm_type)
    expected = torch.nn.utils.clip_grad_norm_(theirs, max_norm, norm_type)
    assert total == pytest.approx(expected.item(), rel=1e-14)
    for p, q in zip(mine[:-1], theirs):
        np.testing.assert_allclose(p.grad, q.grad.numpy(), rtol=1e-13)
    assert mine[-1].grad is None


@settings(max_examples=60, deadline=None)
@given(
    borders=st.lists(st.integers(0, 500), max_size=8),
    norm_type=st.sampled_from(NORMS),
    seed=st.integers(0, 99),
    max_norm=st.sampled_from([0.5, 20.0, 1e9]),
    order=st.randoms(use_true_random=False),
)
def test_shards_give_what_the_whole_gives(
    borders: list[int], norm_type: float, seed: int, max_norm: float, order: Any
) -> None:
    whole = np.random.default_rng(seed).standard_normal(500).astype(np.float32)
    edges = [0, *sorted(borders), 500]
    shards = [whole[start:end].copy() for start, end in itertools.pairwise(edges)]
    (alone,) = parameters(whole)
    total = clip_grad_norm_(alone, max_norm, norm_type)
    parts = [GlobalNorm.of([shard], norm_type) for shard in shards]
    order.shuffle(parts)
    combined = sum(parts, GlobalNorm(norm_type))
    assert combined.value == pytest.approx(total, rel=1e-14)
    for shard in shards:
        scale_([shard], combined.coefficient(max_norm))
    np.testing.assert_allclose(np.concatenate(shards), alone.grad, rtol=1.5e-7)


def test_squared_norms_add_and_the_coefficient_is_torchs() -> None:
    gradients = some()
    parts = [squared_norm(gradients[:1]), squared_norm(gradients[1:])]
    assert sum(parts) == pytest.approx(squared_norm(gradients), rel=1e-15)
    assert clip_coefficient(math.sqrt(sum(parts)), 1.0) == GlobalNorm.of(gradients).coefficient(1.0)
    assert clip_coefficient(0.0, 1.0) == 1.0
    assert clip_coefficient(math.inf, 1.0) == 0.0
    assert math.isnan(clip_coefficient(math.nan, 1.0))


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32])
def test_sums_do_not_overflow_and_do_not_lose_small_ones(dtype: Any) -> None:
    large = np.full(BLOCK + 3, 3e4 if dtype == np.float16 else 1e38, dtype)
    assert GlobalNorm.of([large]).value == pytest.approx(float(large[0]) * math.sqrt(BLOCK + 3), rel=1e-12)
    small = np.full(3, 6e-8 if dtype == np.float16 else 1e-30, dtype)
    (parameter,) = parameters(small)
    before = small.astype(np.float64)
    assert clip_grad_norm_(parameter, 1.0) == pytest.approx(float(before[0]) * math.sqrt(3), rel=1e-12)
    np.testing.assert_array_equal(small.astype(np.float64), before)


def test_half_precision_is_scaled_in_float32() -> None:
    """A coefficient of 1e-9 is 0 in float16."""
    scaled = np.full(2, 6e4, np.float16)
    scale_([scaled], 1e-9)
    np.testing.assert_allclose(scaled, 6e-5, rtol=1e-3)


@pytest.mark.parametrize("order", ["C", "F"])
def test_large_and_strided_gradients(order: Any) -> None:
    gradient = np.array(np.random.default_rng(0).standard_normal((1000, 300), np.float32), order=order)
    expected = gradient / np.linalg.norm(gradient.astype(np.float64))
    (parameter,) = parameters(gradient)
    clip_grad_norm_([parameter], 1.0)
    assert parameter.grad is gradient
    np.testing.assert_allclose(gradient, expected, rtol=1e-5)


@pytest.mark.parametrize("norm_type", NORMS)
def test_threads_change_no_bit_of_a_norm(norm_type: float) -> None:
    gradient = np.random.default_rng(0).standard_normal(12 * BLOCK + 9001, np.float32)
    before = update_threads()
    try:
        found = set()
        for threads in (1, 3):
            set_update_threads(threads)
            found.add(GlobalNorm.of([gradient], norm_type).value)
    finally:
        set_update_threads(before)
    (value,) = found
    assert value == pytest.approx(np.linalg.norm(gradient.astype(np.float64), norm_type), rel=1e-12)


def test_sparse_gradients_count_once_a_row_and_are_clipped() -> None:
    rows = SparseRows(np.array([5, 2, 5]), np.array([[3.0, 0], [0, 1], [1, -3]]), (9, 2))
    (parameter,) = parameters(rows)
    clip_grad_value_(parameter, 2.0)  # of the sum of both: (4, -3)
    np.testing.assert_array_equal(parameter.grad.to_dense()[[2, 5]], [[0, 1], [2, -2]])
    assert clip_grad_norm_([parameter], 1.0) == pytest.approx(3)
    assert isinstance(parameter.grad, SparseRows)
    assert np.linalg.norm(parameter.grad.to_dense()) == pytest.approx(1, rel=1e-6)
    np.testing.assert_array_equal(rows.values[0], [3, 0])


def test_one_norm_over_several_devices() -> None:
    devices = [StrictDevice("clip-0"), StrictDevice("clip-1")]
    gradients = some()
    placed = [gradients[0].copy(), *(d.to_device(g) for d, g in zip(devices, gradients[1:]))]
    params = []
    for gradient in placed:
        params.append(Tensor(backend.xp(gradient).zeros_like(gradient), requires_grad=True))
        params[-1].grad = gradient
    total = clip_grad_norm_(params, 1.0)
    host = parameters(*gradients[:3])
    assert total == clip_grad_norm_(host, 1.0)
    clip_grad_value_(params, 0.1)
    clip_grad_value_(host, 0.1)
    np.testing.assert_array_equal(placed[0], gradients[0])
    for there, here in zip(placed[1:], gradients[1:]):
        np.testing.assert_array_equal(there.host, here)


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, ml_dtypes.bfloat16])
def test_clip_value(dtype: Any) -> None:
    gradient = np.array([-3, -0.5, 0, 0.5, math.inf]).astype(dtype)
    clip_grad_value_(parameters(gradient), 1.0)
    assert gradient.dtype == np.dtype(dtype)
    np.testing.assert_array_equal(gradient.astype(np.float64), [-1, -0.5, 0, 0.5, 1])


@pytest.mark.parametrize("norm_type", NORMS)
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_norm_that_is_not_finite(bad: float, norm_type: float) -> None:
    gradients = [np.array([1.0, bad]), np.array([2.0])]
    params = parameters(*gradients)
    with pytest.raises(ArgumentError, match=f"is {bad}, so they can't be clipped.*error_if_nonfinite"):
        clip_grad_norm_(params, 1.0, norm_type, error_if_nonfinite=True)
    np.testing.assert_array_equal(gradients[1], [2.0])
    assert str(clip_grad_norm_(params, 1.0, norm_type)) == str(bad)
    np.testing.assert_array_equal(gradients[1], [math.nan if math.isnan(bad) else 0.0])


def test_gradients_that_cannot_be_written_are_replaced() -> None:
    shared = np.broadcast_to(np.float32(3), (4,))
    (parameter,) = parameters(shared)
    assert clip_grad_norm_(parameter, 1.0) == 6
    np.testing.assert_allclose(parameter.grad, 0.5, rtol=1e-6)
    np.testing.assert_array_equal(shared, 3)


def test_bad_norms_are_refused() -> None:
    with pytest.raises(ArgumentError, match="norm_type must be above 0, not 0"):
        clip_grad_norm_(parameters(np.ones(2)), 1.0, 0)
    with pytest.raises(ArgumentError, match=r"p=2.0 and p=1.0 do not add"):
        GlobalNorm(2.0) + GlobalNorm(1.0)
    assert clip_grad_norm_([], 1.0) == 0.0


def test_what_cannot_be_clipped_is_refused() -> None:
    model = nn.Linear(2, 2)
    with pytest.raises(ArgumentError, match=r"max_norm must be at least 0, not -1\.0"):
        clip_grad_norm_(model.parameters(), -1.0)
    for clip in (clip_grad_norm_, clip_grad_value_):
        with pytest.raises(ArgumentError, match=r"not of a module: its \.parameters\(\)"):
            clip(model, 1.0)  # type: ignore[arg-type]
