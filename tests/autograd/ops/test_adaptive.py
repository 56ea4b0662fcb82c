import numpy as np
import pytest
from torch_oracle import assert_equals_torch

from psframework.autograd import tensor
from psframework.autograd.ops.adaptive import (
    adaptive_avg_pool1d,
    adaptive_avg_pool2d,
    adaptive_max_pool1d,
    adaptive_max_pool2d,
)
from psframework.errors import ArgumentError

rng = np.random.default_rng(14)
ALL = [adaptive_avg_pool1d, adaptive_avg_pool2d, adaptive_max_pool1d, adaptive_max_pool2d]


@pytest.mark.oracle
@pytest.mark.parametrize("op", ALL, ids=lambda op: op.__name__)
def test_equals_torch(op):
    """Also of few different numbers, so that most windows have ties."""
    theirs = getattr(pytest.importorskip("torch").nn.functional, op.__name__)
    one = op.__name__.endswith("1d")
    for size in (1, 2, 3, 4, 5, 9, 11, *([] if one else [(3, 4), (None, 2), (9, None)])):
        for shape in ((2, 3, 9), (3, 9)) if one else ((2, 3, 9, 8), (3, 9, 8)):
            for array in (rng.standard_normal(shape), rng.integers(0, 3, shape).astype(float)):
                assert_equals_torch(op, theirs, {"input": array}, output_size=size)


@pytest.mark.parametrize("op", ALL, ids=lambda op: op.__name__)
def test_windows_side_by_side_and_overlapping(op):
    x = rng.standard_normal((2, 3, *(6,) * int(op.__name__[-2])))
    reduce = np.max if "max" in op.__name__ else np.mean
    axes = tuple(range(2, x.ndim))
    np.testing.assert_allclose(op(x, 1).data, reduce(x, axes, keepdims=True))
    np.testing.assert_allclose(op(x, 6).data, x)
    last = op(x, 4).data[(slice(None), slice(None), *(-1,) * len(axes))]
    np.testing.assert_allclose(last, reduce(x[(slice(None), slice(None), *(slice(4, 6),) * len(axes))], axes))


@pytest.mark.parametrize("op", ALL, ids=lambda op: op.__name__)
@pytest.mark.parametrize("size", [1, 2, 3])
def test_16_bits_and_an_empty_batch(op, size):
    shape = (2, 3, *(4,) * int(op.__name__[-2]))
    t = tensor(rng.standard_normal(shape), True, dtype=np.float16)
    out = op(t, size)
    out.sum().backward()
    assert out.dtype == t.grad.dtype == np.float16
    assert op(np.zeros((0, *shape[1:])), size).shape == (0, 3, *(size,) * (len(shape) - 2))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: adaptive_avg_pool2d(np.zeros((2, 3)), 2), r"x must be \(batch, channels, rows, columns\)"),
        (lambda: adaptive_max_pool1d(np.zeros((2, 3, 4)), 0), "output_size="),
        (lambda: adaptive_avg_pool2d(np.zeros((2, 3, 4, 4)), (1, 2, 3)), "output_size="),
        (lambda: adaptive_max_pool2d(np.zeros((2, 3, 0, 4)), 2), "no elements"),
        (lambda: adaptive_avg_pool1d(np.zeros((2, 3, 4), int), 2), "int64 is not floating"),
    ],
)
def test_bad_input(call, words):
    with pytest.raises(ArgumentError, match=words):
        call()
