import ml_dtypes
import numpy as np
import pytest
from torch_oracle import assert_equals_torch

from psframework.autograd import tensor
from psframework.autograd.ops.layer_norm import layer_norm, rms_norm
from psframework.errors import ArgumentError
from psframework.testing.gradcheck import gradcheck

rng = np.random.default_rng(15)
SHAPES = [
    ((5, 7), (7,)),
    ((2, 3, 4), (4,)),
    ((2, 3, 4), (3, 4)),
    ((7,), (7,)),
    ((0, 4), (4,)),
    ((1, 1), (1,)),
]


@pytest.mark.oracle
@pytest.mark.parametrize(("shape", "axes"), SHAPES, ids=str)
def test_equals_torch(shape, axes):
    F = pytest.importorskip("torch").nn.functional
    for ours, theirs in ((layer_norm, F.layer_norm), (rms_norm, F.rms_norm)):
        arrays = {"input": rng.standard_normal(shape)}
        assert_equals_torch(ours, theirs, arrays, normalized_shape=axes)
        arrays["weight"] = rng.standard_normal(axes)
        assert_equals_torch(ours, theirs, arrays, normalized_shape=axes, eps=1e-3)
    arrays["bias"] = rng.standard_normal(axes)
    assert_equals_torch(layer_norm, F.layer_norm, arrays, normalized_shape=axes)


@pytest.mark.parametrize("op", [layer_norm, rms_norm], ids=lambda op: op.__name__)
def test_any_memory_layout_and_each_input_alone(op):
    x, weight = rng.standard_normal((4, 6)), rng.standard_normal(6)
    for array in (np.asfortranarray(x), rng.standard_normal((8, 12))[::2, ::-2]):
        before = array.copy()
        gradcheck(lambda x: op(x, 6, weight), [array])
        np.testing.assert_array_equal(array, before)  # neither pass writes into its input
    gradcheck(lambda w: op(x, 6, w), [weight])
    gradcheck(lambda b: layer_norm(x, 6, weight, b), [weight.copy()])


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("op", [layer_norm, rms_norm], ids=lambda op: op.__name__)
def test_16_bits_are_computed_in_float32(op, dtype):
    """Sums of squares beyond float16's largest number."""
    t, w = tensor(rng.standard_normal((3, 2000)) * 30, True, dtype=dtype), tensor(np.ones(2000, dtype), True)
    out = op(t, 2000, w)
    out.sum().backward()
    assert out.dtype == t.grad.dtype == w.grad.dtype == dtype
    exact = op(t.data.astype(np.float64), 2000).data
    np.testing.assert_allclose(
        out.data.astype(float), exact, rtol=float(ml_dtypes.finfo(dtype).eps), atol=1e-3
    )


def test_a_large_mean_loses_no_precision_in_float32():
    x = rng.standard_normal((4, 512)) + 1000
    out = layer_norm(x.astype(np.float32), 512).data
    np.testing.assert_allclose(out, layer_norm(x.astype(np.float32).astype(float), 512).data, atol=2e-3)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: layer_norm(np.zeros((2, 3)), 2), r"layer_norm: input of shape \(2, 3\) does not end in"),
        (lambda: rms_norm(np.zeros((2, 3)), (2, 2, 3)), "rms_norm: input of shape"),
        (lambda: layer_norm(np.zeros((2, 3)), ()), "does not end in"),
        (lambda: layer_norm(np.zeros((2, 3)), 3, np.zeros(2)), r"weight must have shape \(3,\), got \(2,\)"),
        (lambda: layer_norm(np.zeros((2, 3)), 3, None, np.zeros(2)), "bias must have shape"),
        (lambda: rms_norm(np.zeros((2, 3), int), 3), "int64 is not floating"),
    ],
)
def test_bad_input(call, words):
    with pytest.raises(ArgumentError, match=words):
        call()
