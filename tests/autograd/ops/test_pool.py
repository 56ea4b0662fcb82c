import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch_oracle import assert_equals_torch

from psframework.autograd import tensor
from psframework.autograd.ops.pool import avg_pool1d, avg_pool2d, max_pool1d, max_pool2d
from psframework.errors import ArgumentError
from psframework.testing.gradcheck import gradcheck

rng = np.random.default_rng(10)
X = rng.permutation(2 * 3 * 6 * 7).astype(float).reshape(2, 3, 6, 7)


def plain_pool(x, kernel, stride, padding, fill, reduce):
    x = np.pad(x, ((0, 0), (0, 0), (padding[0],) * 2, (padding[1],) * 2), constant_values=fill)
    windows = np.lib.stride_tricks.sliding_window_view(x, kernel, (2, 3))[:, :, :: stride[0], :: stride[1]]
    return reduce(windows, axis=(4, 5))


CASES = [
    ((2, 2), (2, 2), (0, 0)),
    ((3, 3), (2, 2), (1, 1)),
    ((3, 2), (1, 3), (1, 0)),
    ((6, 7), (1, 1), (0, 0)),
]


@pytest.mark.parametrize(("kernel", "stride", "padding"), CASES)
def test_values_and_gradients(kernel, stride, padding):
    np.testing.assert_array_equal(
        max_pool2d(X, kernel, stride, padding).data, plain_pool(X, kernel, stride, padding, -np.inf, np.max)
    )
    np.testing.assert_allclose(
        avg_pool2d(X, kernel, stride, padding).data, plain_pool(X, kernel, stride, padding, 0, np.mean)
    )
    gradcheck(lambda x: max_pool2d(x, kernel, stride, padding), [X.copy()], step=1e-4)
    gradcheck(lambda x: avg_pool2d(x, kernel, stride, padding), [X.copy()], step=1e-4)


@pytest.mark.parametrize("op", [max_pool2d, avg_pool2d], ids=lambda op: op.__name__)
def test_strided_and_empty(op):
    gradcheck(lambda x: op(x, 2), [X[:, ::-1, ::2, ::-1]], step=1e-4)
    gradcheck(lambda x: op(x, 2), [X[:0].copy()])
    assert op(X, 2).shape == op(X, 2, 2).shape == (2, 3, 3, 3)


@settings(max_examples=60, deadline=None)
@given(
    length=st.integers(4, 9),
    kernel=st.integers(1, 4),
    stride=st.integers(1, 4),
    padding=st.integers(0, 2),
    dilation=st.integers(1, 2),
    ceil_mode=st.booleans(),
    include=st.booleans(),
)
def test_any_geometry_is_the_definition(length, kernel, stride, padding, dilation, ceil_mode, include):
    """Window by window: where each begins, which elements are the image's, and who gets the gradient."""
    padding, dilation = min(padding, kernel // 2), dilation if length > 2 * kernel else 1
    x = rng.permutation(length).astype(float)
    begins = range(-padding, length + padding, stride)
    for op, step in ((max_pool1d, dilation), (avg_pool1d, 1)):
        span = step * (kernel - 1)
        reach = length + padding + (stride - 1 if ceil_mode else 0)
        used = [b for b in begins if b + span < reach and (b < length or not ceil_mode)]
        values, gradient = [], np.zeros(length)
        for begin in used:
            places = range(begin, begin + span + 1, step)
            inside = [place for place in places if 0 <= place < length]
            if op is max_pool1d:
                largest = max(inside, key=lambda place: x[place])
                values.append(x[largest])
                gradient[largest] += 1
            else:
                bordered = [place for place in places if place < length + padding]
                count = len(bordered if include else inside)
                values.append(x[inside].sum() / count)
                gradient[inside] += 1 / count
        options = {"dilation": dilation} if op is max_pool1d else {"count_include_pad": include}
        t = tensor(x[None, None], True)
        out = op(t, kernel, stride, padding, ceil_mode=ceil_mode, **options)
        np.testing.assert_allclose(out.data[0, 0], values)
        out.sum().backward()
        np.testing.assert_allclose(t.grad[0, 0], gradient, atol=1e-12)


OPTIONS = [
    {"kernel_size": 2},
    {"kernel_size": 3, "stride": 2, "padding": 1},
    {"kernel_size": 3, "stride": 1},
    {"kernel_size": 2, "stride": 3},
    {"kernel_size": 4, "stride": 3, "padding": 2, "ceil_mode": True},
    {"kernel_size": 2, "ceil_mode": True},
    {"kernel_size": 1},
]


@pytest.mark.oracle
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_equals_torch(options):
    """Also of few different numbers, so that most windows have ties."""
    F = pytest.importorskip("torch").nn.functional
    for shape in ((2, 3, 9), (3, 9), (2, 3, 9, 8), (3, 9, 8)):
        one = len(shape) - shape.index(9) == 1
        more = {"dilation": 2} if options["kernel_size"] < 4 else {}
        for array in (rng.standard_normal(shape), rng.integers(0, 3, shape).astype(float)):
            for chosen in (options, options | more):
                ours, theirs = (max_pool1d, F.max_pool1d) if one else (max_pool2d, F.max_pool2d)
                assert_equals_torch(ours, theirs, {"input": array}, **chosen)
        ours, theirs = (avg_pool1d, F.avg_pool1d) if one else (avg_pool2d, F.avg_pool2d)
        for more in ({}, {"count_include_pad": False}, *([] if one else [{"divisor_override": 3}])):
            assert_equals_torch(ours, theirs, {"input": array}, **options | more)


def test_nan_wins_and_the_gradient_goes_on():
    t = tensor(np.array([[[1, np.nan, 2, 3, 4, 5.0]]]), True)
    out = max_pool1d(t, 3)
    np.testing.assert_array_equal(out.data, [[[np.nan, 5]]])
    out.sum().backward()
    np.testing.assert_array_equal(t.grad, [[[0, 0, 1, 0, 0, 1]]])


def test_the_first_of_equal_values_gets_the_gradient():
    t = tensor(np.zeros((1, 1, 3, 3)), True)
    max_pool2d(t, 2, 1).sum().backward()
    np.testing.assert_array_equal(t.grad[0, 0], [[1, 1, 0], [1, 1, 0], [0, 0, 0]])


def test_dtype_is_kept():
    for op in (max_pool2d, avg_pool2d):
        t = tensor(X, True, dtype=np.float16)
        out = op(t, 2)
        out.sum().backward()
        assert out.dtype == t.grad.dtype == np.float16


@pytest.mark.parametrize("op", [max_pool2d, avg_pool2d], ids=lambda op: op.__name__)
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((X[0, 0], 2), r"x must be \(batch, channels, rows, columns\)"),
        ((X, 0), "kernel_size=0"),
        ((X, 2, 0), "stride=0"),
        ((X, 2, 2, 2), "more than half"),
        ((X, 9), "does not fit"),
    ],
)
def test_bad_input(op, arguments, words):
    with pytest.raises(ArgumentError, match=f"{op.__name__}.*{words}"):
        op(*arguments)


def test_max_pool_of_integers():
    with pytest.raises(ArgumentError, match="int64 is not floating"):
        max_pool2d(np.zeros((1, 1, 2, 2), int), 2)


def test_a_divisor_of_zero():
    with pytest.raises(ArgumentError, match="divisor_override must not be 0"):
        avg_pool2d(X, 2, divisor_override=0)
