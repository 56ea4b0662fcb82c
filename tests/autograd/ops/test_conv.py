import itertools

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch_oracle import assert_equals_torch

from psframework.autograd import tensor
from psframework.autograd.ops import conv
from psframework.autograd.ops.conv import conv1d, conv2d
from psframework.autograd.ops.windows import inside_out
from psframework.errors import ArgumentError
from psframework.testing.gradcheck import gradcheck

rng = np.random.default_rng(9)


def plain_convolution(x, weight, bias, stride, padding, dilation, groups):
    """The definition, in loops."""
    (n, _, h, w), (o, c, kh, kw) = x.shape, weight.shape
    x = np.pad(x, ((0, 0), (0, 0), (padding[0],) * 2, (padding[1],) * 2))
    rows = (h + 2 * padding[0] - dilation[0] * (kh - 1) - 1) // stride[0] + 1
    columns = (w + 2 * padding[1] - dilation[1] * (kw - 1) - 1) // stride[1] + 1
    out = np.zeros((n, o, rows, columns)) + bias.reshape(-1, 1, 1)
    for k, i, j in itertools.product(range(o), range(rows), range(columns)):
        group = k // (o // groups)
        top, left = i * stride[0], j * stride[1]
        window = x[:, group * c : (group + 1) * c, top:, left:]
        window = window[:, :, : dilation[0] * kh : dilation[0], : dilation[1] * kw : dilation[1]]
        out[:, k, i, j] += (window[:, :, :kh, :kw] * weight[k]).sum(axis=(1, 2, 3))
    return out


CASES = [
    # kernel, stride, padding, dilation, groups
    ((3, 3), (1, 1), (1, 1), (1, 1), 1),
    ((1, 1), (1, 1), (0, 0), (1, 1), 1),
    ((3, 2), (2, 1), (0, 1), (1, 1), 1),
    ((2, 3), (1, 2), (2, 1), (2, 1), 2),
    ((3, 3), (3, 2), (1, 2), (1, 2), 4),
    ((5, 6), (1, 1), (0, 0), (1, 1), 1),
]


@pytest.mark.parametrize(("kernel", "stride", "padding", "dilation", "groups"), CASES)
@pytest.mark.parametrize("keep", [0, 1 << 20], ids=["unfolded again", "kept"])
def test_values_and_gradients(kernel, stride, padding, dilation, groups, keep, monkeypatch):
    monkeypatch.setattr(conv, "KEEP_BYTES", keep)
    x = rng.standard_normal((2, 4, 5, 6))
    weight, bias = rng.standard_normal((8, 4 // groups, *kernel)), rng.standard_normal(8)
    options = (stride, padding, dilation, groups)
    expected = plain_convolution(x, weight, bias, *options)
    np.testing.assert_allclose(conv2d(x, weight, bias, *options).data, expected, atol=1e-12)
    small = weight[: 2 * groups].copy()
    gradcheck(lambda x, w, b: conv2d(x, w, b, *options), [x, small, bias[: len(small)].copy()])
    gradcheck(lambda x, w: conv2d(x, w, None, *options), [x, small])


@settings(max_examples=40, deadline=None)
@given(
    kernel=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    stride=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    padding=st.tuples(st.integers(0, 2), st.integers(0, 2)),
    dilation=st.tuples(st.integers(1, 2), st.integers(1, 2)),
    size=st.tuples(st.integers(5, 7), st.integers(5, 7)),
    groups=st.sampled_from([1, 2, 4]),
    batch=st.integers(0, 2),
)
def test_any_geometry_is_the_definition(kernel, stride, padding, dilation, size, groups, batch):
    """The values, and the gradients by their own definition: the result is linear in each argument."""
    x, weight = rng.standard_normal((batch, 4, *size)), rng.standard_normal((4, 4 // groups, *kernel))
    bias, options = rng.standard_normal(4), (stride, padding, dilation, groups)
    leaves = [tensor(array, True) for array in (x, weight, bias)]
    out = conv2d(*leaves, *options)
    expected = plain_convolution(x, weight, bias, *options)
    np.testing.assert_allclose(out.data, expected, atol=1e-12)
    seed = rng.standard_normal(out.shape)
    out.backward(seed)
    without_bias = (seed * plain_convolution(x, weight, np.zeros(4), *options)).sum()
    for leaf, array in zip(leaves[:2], (x, weight)):
        np.testing.assert_allclose((leaf.grad * array).sum(), without_bias, atol=1e-9)
    np.testing.assert_allclose(leaves[2].grad, seed.sum((0, 2, 3)), atol=1e-12)


OPTIONS = [
    {},
    {"padding": "same"},
    {"padding": "same", "dilation": 3},
    {"padding": "valid", "stride": 2},
    {"padding": 2, "stride": 3, "dilation": 2},
    {"groups": 2, "padding": 1},
    {"groups": 4, "stride": 2},
]


@pytest.mark.oracle
@pytest.mark.filterwarnings("ignore:Using padding")
@pytest.mark.parametrize("kernel", [1, 2, 3, 4])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_equals_torch(options, kernel):
    F = pytest.importorskip("torch").nn.functional
    for ours, theirs, size, window in (
        (conv1d, F.conv1d, (11,), (kernel,)),
        (conv2d, F.conv2d, (11, 10), (kernel, max(kernel - 1, 1))),
    ):
        weight, bias = (
            rng.standard_normal((8, 4 // options.get("groups", 1), *window)),
            rng.standard_normal(8),
        )
        for shape in ((2, 4, *size), (4, *size)):
            arrays = {"input": rng.standard_normal(shape), "weight": weight, "bias": bias}
            assert_equals_torch(ours, theirs, arrays, **options)


def test_one_axis_is_one_row():
    x, weight, bias = rng.standard_normal((2, 4, 9)), rng.standard_normal((6, 2, 3)), rng.standard_normal(6)
    expected = conv2d(x[:, :, None], weight[:, :, None], bias, (1, 2), (0, 1), (1, 2), 2).data[:, :, 0]
    np.testing.assert_allclose(conv1d(x, weight, bias, 2, 1, 2, 2).data, expected)


def test_each_input_alone_strided_and_empty():
    x, weight, bias = rng.standard_normal((2, 3, 4, 4)), rng.standard_normal((2, 3, 3, 3)), np.zeros(2)
    gradcheck(lambda x: conv2d(x, weight, bias), [rng.standard_normal((4, 3, 8, 5))[::2, ::-1, ::2]])
    gradcheck(lambda w: conv2d(x, w, bias), [weight.transpose(0, 1, 3, 2)])
    gradcheck(lambda b: conv2d(x, weight, b), [bias])
    gradcheck(conv2d, [np.zeros((0, 3, 4, 4)), weight, bias])


def test_layers_in_a_row_copy_nothing_between_them():
    first = conv2d(rng.standard_normal((5, 1, 6, 6)), rng.standard_normal((3, 1, 3, 3)))
    assert inside_out(first.data).flags.c_contiguous
    assert first.relu().flatten(1).data.T.flags.c_contiguous


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_16_bits_accumulate_in_float32(dtype):
    x, w = np.full((1, 400, 3, 3), 0.1, dtype), np.full((1, 400, 3, 3), 0.1, dtype)
    t, weight = tensor(x, True), tensor(w, True)
    out = conv2d(t, weight)
    out.sum().backward()
    assert out.dtype == t.grad.dtype == weight.grad.dtype == dtype
    exact = float(x[0, 0, 0, 0]) ** 2 * 3600
    np.testing.assert_allclose(out.data.astype(float), exact, rtol=float(ml_dtypes.finfo(dtype).eps))


X, W = np.zeros((2, 4, 5, 6)), np.zeros((8, 4, 3, 3))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: conv2d(X[0, 0], W), r"x must be \(batch, in, rows, columns\)"),
        (lambda: conv2d(X[:, :3], W), r"3 channels in 1 group\(s\) do not fit a weight"),
        (lambda: conv2d(X, W, groups=2), "do not fit"),
        (lambda: conv2d(X, W, groups=0), "do not fit"),
        (lambda: conv2d(X, W, np.zeros(4)), r"bias of shape \(8,\), got \(4,\)"),
        (lambda: conv2d(X, W, stride=0), "stride=0 must be an integer of at least 1"),
        (lambda: conv2d(X, W, padding=(1, 1, 1)), r"padding=\(1, 1, 1\)"),
        (lambda: conv2d(X, W, padding=-1), "padding=-1"),
        (lambda: conv2d(X, W, padding="full"), "padding='full' is no number"),
        (lambda: conv2d(X, W, stride=(1, 2), padding="same"), "with stride 1"),
        (lambda: conv2d(X.astype(int), W), "conv2d: dtype int64 is not floating"),
        (lambda: conv1d(X, W), r"conv1d: x must be \(batch, in, length\)"),
        (
            lambda: conv1d(X[0], np.zeros((8, 5, 3)), padding=(1, 1)),
            r"padding=\(1, 1\) must be an integer of at least 0",
        ),
        (lambda: conv2d(X, W, dilation=3), r"does not fit into an image of \(5, 6\)"),
    ],
)
def test_bad_input(call, words):
    with pytest.raises(ArgumentError, match=words):
        call()
