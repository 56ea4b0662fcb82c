from importlib import import_module

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis.extra import numpy as npst

from psframework.autograd import no_grad, tensor
from psframework.autograd.ops.matmul import linear, matmul
from psframework.errors import ArgumentError, AutogradError
from psframework.testing.gradcheck import gradcheck

rng = np.random.default_rng(5)


def normal(*shape):
    return rng.standard_normal(shape)


PAIRS = {
    "matrices": (normal(3, 4), normal(4, 5)),
    "vectors": (normal(4), normal(4)),
    "row": (normal(4), normal(4, 5)),
    "column": (normal(3, 4), normal(4)),
    "batch by matrix": (normal(2, 3, 4), normal(4, 5)),
    "batch by vector": (normal(2, 3, 4), normal(4)),
    "vector by batch": (normal(4), normal(2, 4, 5)),
    "batches": (normal(2, 3, 4), normal(2, 4, 5)),
    "batches broadcast": (normal(2, 1, 3, 4), normal(6, 4, 5)),
    "strided": (normal(6, 8)[::2, ::-2], normal(5, 4).T),
    "no rows": (normal(0, 4), normal(4, 5)),
    "nothing to sum": (normal(3, 0), normal(0, 5)),
    "no batches": (normal(0, 3, 4), normal(0, 4, 5)),
}


@pytest.mark.parametrize("case", PAIRS)
def test_matmul(case):
    a, b = PAIRS[case]
    np.testing.assert_allclose(matmul(a, b).data, a @ b)
    gradcheck(matmul, [a, b])
    gradcheck(lambda x: x @ b, [a])
    gradcheck(lambda x: a @ x, [b])


@settings(max_examples=30)
@given(
    npst.mutually_broadcastable_shapes(signature="(n?,k),(k,m?)->(n?,m?)", min_side=0, max_side=3, max_dims=2)
)
def test_shapes_that_broadcast(shapes):
    a, b = (rng.standard_normal(shape) for shape in shapes.input_shapes)
    np.testing.assert_allclose(matmul(a, b).data, np.matmul(a, b), atol=1e-12)
    gradcheck(matmul, [a, b])


LINEAR = {
    "rows": (normal(3, 4), normal(5, 4), normal(5)),
    "one row": (normal(4), normal(5, 4), normal(5)),
    "more axes": (normal(2, 3, 4), normal(5, 4), normal(5)),
    "no rows": (normal(0, 4), normal(5, 4), normal(5)),
    "no rows, more axes": (normal(2, 0, 4), normal(5, 4), normal(5)),
    "strided": (normal(6, 8)[::2, ::-2], normal(4, 5).T, normal(10)[::2]),
    "batch last": (normal(4, 3).T, normal(5, 4), normal(5)),
}


@pytest.mark.parametrize("small", [0, 4096], ids=["batch last", "batch first"])
@pytest.mark.parametrize("case", LINEAR)
def test_linear_in_both_layouts(case, small, monkeypatch):
    monkeypatch.setattr(import_module("psframework.autograd.ops.matmul"), "SMALL", small)
    x, weight, bias = LINEAR[case]
    np.testing.assert_allclose(linear(x, weight, bias).data, x @ weight.T + bias, atol=1e-12)
    gradcheck(linear, [x, weight, bias])
    gradcheck(linear, [x, weight])
    gradcheck(lambda w: linear(x, w, bias), [weight])
    gradcheck(lambda x: linear(x, weight, bias), [x])
    gradcheck(lambda b: linear(x, weight, b), [bias])


def test_gradients_of_parameters_are_contiguous_however_the_batch_lies():
    for x in (np.asfortranarray(normal(16, 100)), normal(16, 100)):
        weight, bias = tensor(normal(50, 100), True), tensor(normal(50), True)
        linear(x, weight, bias).sum().backward()
        assert weight.grad.flags.c_contiguous and weight.grad.flags.owndata and bias.grad.flags.owndata


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_16_bits_accumulate_in_float32(dtype):
    x, weight = np.full((2, 4000), 0.1, dtype), np.full((3, 4000), 0.1, dtype)
    t, w, b = tensor(x, True), tensor(weight, True), tensor(np.zeros(3, dtype), True)
    exact = float(x[0, 0]) ** 2 * 4000
    for out in (linear(t, w, b), t @ w.T):
        assert out.dtype == dtype
        np.testing.assert_allclose(out.data.astype(float), exact, rtol=float(ml_dtypes.finfo(dtype).eps))
        out.sum().backward()
    assert t.grad.dtype == w.grad.dtype == b.grad.dtype == dtype


def test_mixed_dtypes_and_integers():
    x, w = tensor(normal(3, 4).astype(np.float32), True), tensor(normal(5, 4), True)
    b = tensor(np.ones(5, np.float16), True)
    linear(x, w, b).sum().backward()
    assert (x.grad.dtype, w.grad.dtype, b.grad.dtype) == (np.float32, np.float64, np.float16)
    ids = np.arange(12).reshape(3, 4)
    np.testing.assert_allclose(linear(ids, w).data, ids @ w.data.T)


def test_a_sequence_takes_one_node_and_keeps_rows_together():
    x, weight, bias = tensor(normal(2, 3, 100), True), tensor(normal(50, 100), True), tensor(normal(50), True)
    out = linear(x, weight, bias)
    assert out.node.edges == (x, weight, bias) and out.data.flags.c_contiguous
    with no_grad():
        x *= 2
    with pytest.raises(AutogradError, match="'linear'"):
        out.sum().backward()


def test_narrow_integers_do_not_narrow_the_sum():
    counts, x = np.ones((1, 4000), np.int8), tensor(np.full((4000, 1), 0.1, np.float16), True)
    out = tensor(counts) @ x
    assert out.dtype == np.float16
    np.testing.assert_allclose(float(out), 4000 * float(np.float16(0.1)), rtol=1e-3)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: matmul(normal(3, 4), normal(3, 4)), r"matmul: shapes \(3, 4\) and \(3, 4\) do not fit"),
        (lambda: matmul(np.array(1.0), normal(3)), "do not fit"),
        (lambda: normal(3, 4) @ tensor(normal(3)), "do not fit"),
        (
            lambda: linear(normal(3, 4), normal(5, 3)),
            r"input of shape \(3, 4\) needs a weight of shape \(out, 4\)",
        ),
        (lambda: linear(normal(3, 4), normal(5, 4), normal(4)), r"bias of shape \(5,\), got \(4,\)"),
        (lambda: linear([1.0], normal(5, 4)), "tensor or an array, not list"),
    ],
)
def test_bad_input(call, words):
    with pytest.raises(ArgumentError, match=words):
        call()
