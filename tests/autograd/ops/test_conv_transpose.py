import itertools

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch_oracle import assert_equals_torch

from psframework.autograd import tensor
from psframework.autograd.ops.conv_transpose import conv_transpose1d, conv_transpose2d
from psframework.errors import ArgumentError
from psframework.testing.gradcheck import gradcheck

rng = np.random.default_rng(8)


def plain_transpose(x, weight, bias, stride, padding, output_padding, groups, dilation):
    """The definition, in loops: each input element adds its kernel to the result."""
    (n, c, length), (_, outs, kernel) = x.shape, weight.shape
    size = (length - 1) * stride + dilation * (kernel - 1) + 1 + output_padding
    out = np.zeros((n, outs * groups, size))
    for i, j, k in itertools.product(range(c), range(length), range(kernel)):
        group = i // (c // groups)
        out[:, group * outs : (group + 1) * outs, j * stride + k * dilation] += (
            x[:, i, j, None] * weight[i, :, k]
        )
    return out[:, :, padding : size - padding] + bias.reshape(-1, 1)


@settings(max_examples=40, deadline=None)
@given(
    length=st.integers(3, 6),
    kernel=st.integers(2, 4),
    stride=st.integers(1, 3),
    padding=st.integers(0, 1),
    dilation=st.integers(1, 2),
    groups=st.sampled_from([1, 2, 4]),
    batch=st.integers(0, 2),
    data=st.data(),
)
def test_any_geometry_is_the_definition(length, kernel, stride, padding, dilation, groups, batch, data):
    more = data.draw(st.integers(0, max(stride, dilation) - 1))
    x, weight = rng.standard_normal((batch, 4, length)), rng.standard_normal((4, 2, kernel))
    bias, options = rng.standard_normal(2 * groups), (stride, padding, more, groups, dilation)
    out = conv_transpose1d(x, weight, bias, *options)
    np.testing.assert_allclose(out.data, plain_transpose(x, weight, bias, *options), atol=1e-12)


OPTIONS = [
    {},
    {"stride": 2, "padding": 1, "output_padding": 1},
    {"stride": 3, "output_padding": 2, "groups": 2},
    {"dilation": 2, "output_padding": 1, "groups": 4},
    {"padding": 1, "dilation": 2, "stride": 2},
]


@pytest.mark.oracle
@pytest.mark.parametrize("kernel", [2, 3])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_equals_torch(options, kernel):
    F = pytest.importorskip("torch").nn.functional
    for ours, theirs, size in (
        (conv_transpose1d, F.conv_transpose1d, (5,)),
        (conv_transpose2d, F.conv_transpose2d, (5, 4)),
    ):
        weight = rng.standard_normal((4, 2, *(kernel,) * len(size)))
        bias = rng.standard_normal(2 * options.get("groups", 1))
        for shape in ((2, 4, *size), (4, *size)):
            arrays = {"input": rng.standard_normal(shape), "weight": weight, "bias": bias}
            assert_equals_torch(ours, theirs, arrays, **options)


def test_gradients_of_each_input_alone_and_of_none():
    x, weight, bias = rng.standard_normal((2, 2, 3, 3)), rng.standard_normal((2, 3, 2, 2)), np.zeros(3)
    gradcheck(lambda x: conv_transpose2d(x, weight, bias, 2), [x[:, :, ::-1]])
    gradcheck(lambda w: conv_transpose2d(x, w, bias, 2), [weight.transpose(0, 1, 3, 2)])
    gradcheck(lambda b: conv_transpose2d(x, weight, b, 2), [bias])
    gradcheck(conv_transpose2d, [np.zeros((0, 2, 3, 3)), weight, bias])


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_16_bits_accumulate_in_float32(dtype):
    t, w = tensor(np.full((1, 3000, 2), 0.1, dtype), True), tensor(np.full((3000, 1, 1), 0.1, dtype), True)
    out = conv_transpose1d(t, w)
    out.sum().backward()
    assert out.dtype == t.grad.dtype == w.grad.dtype == dtype
    exact = float(t.data[0, 0, 0]) ** 2 * 3000
    np.testing.assert_allclose(out.data.astype(float), exact, rtol=float(ml_dtypes.finfo(dtype).eps))


X, W = np.zeros((2, 4, 5, 6)), np.zeros((4, 3, 2, 2))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (
            lambda: conv_transpose2d(X[0, 0], W),
            r"x must be \(batch, in, rows, columns\) and weight \(in, out",
        ),
        (lambda: conv_transpose2d(X[:, :3], W), r"3 channels in 1 group\(s\) do not fit a weight"),
        (lambda: conv_transpose2d(X, W, groups=3), "do not fit"),
        (lambda: conv_transpose2d(X, W, np.zeros(3), groups=2), r"bias of shape \(6,\), got \(3,\)"),
        (lambda: conv_transpose2d(X, W, stride=2, output_padding=2), "output_padding=.* must be less than"),
        (lambda: conv_transpose2d(X, W, padding=4), "would have size"),
        (lambda: conv_transpose1d(X[0], np.zeros((5, 3, 2)), stride=0), "conv_transpose1d: stride=0"),
        (lambda: conv_transpose2d(X, W.astype(int)), "int64 is not floating"),
    ],
)
def test_bad_input(call, words):
    with pytest.raises(ArgumentError, match=words):
        call()
