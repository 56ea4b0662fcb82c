import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import mutually_broadcastable_shapes

from psframework import ops
from psframework.autograd import tensor
from psframework.autograd.ops.arithmetic import add, clip, maximum, multiply, where
from psframework.errors import ArgumentError
from psframework.testing.gradcheck import gradcheck

rng = np.random.default_rng(0)
A, B = rng.uniform(0.5, 2, (3, 4)), rng.uniform(0.5, 2, (3, 4))
MASK = rng.random((3, 4)) < 0.5
BINARY = (
    "add", "subtract", "multiply", "divide", "power", "maximum", "minimum", "fmax", "fmin", "arctan2",
    "hypot", "logaddexp", "logaddexp2", "fmod", "remainder", "floor_divide", "copysign", "heaviside",
    "float_power",
)  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from(BINARY),
    mutually_broadcastable_shapes(num_shapes=2, max_dims=3, min_side=0, max_side=3),
    st.integers(0, 1000),
)
def test_gradients_for_any_shapes_that_broadcast(name, shapes, seed):
    values = np.random.default_rng(seed)
    a, b = (np.asarray(values.uniform(0.55, 0.95, shape)) for shape in shapes.input_shapes)
    b *= 1.03  # no quotient is a whole number, and no pair ties
    out = getattr(ops, name)(a, b)
    assert out.shape == shapes.result_shape
    np.testing.assert_array_equal(out.data, getattr(np, name)(a, b))
    gradcheck(getattr(ops, name), [a, b])


SQUARE = rng.uniform(1, 2, (4, 4))
EXPRESSIONS = {
    "array + t": lambda t: SQUARE + t,
    "array - t": lambda t: SQUARE - t,
    "array * t": lambda t: SQUARE * t,
    "array / t": lambda t: SQUARE / t,
    "array ** t": lambda t: SQUARE**t,
    "array @ t": lambda t: SQUARE @ t,
    "scalar * t": lambda t: np.float64(2) * t,
    "number - t": lambda t: 2 - t,
    "number / t": lambda t: 2 / t,
    "several": lambda t: -t / 3 + t**2 - 2**t,
}


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_an_array_or_number_on_the_left_records_the_graph(name):
    expression, data = EXPRESSIONS[name], rng.uniform(1, 2, (4, 4))
    np.testing.assert_array_equal(expression(tensor(data, True)).data, expression(data))
    gradcheck(expression, [data])


def test_numbers_do_not_widen_float32():
    t = tensor(np.ones(3, np.float32), True)
    out = (2.5 * t + 1) ** 2 / 3 - 0.5
    out.sum().backward()
    assert out.dtype == t.grad.dtype == np.float32


def test_mixed_dtypes_give_each_leaf_its_own():
    half, double = tensor(np.ones(3, np.float16), True), tensor(np.full(3, 3.0), True)
    out = half * double
    out.sum().backward()
    assert (out.dtype, half.grad.dtype, double.grad.dtype) == (np.float64, np.float16, np.float64)
    np.testing.assert_array_equal(half.grad, [3, 3, 3])


def test_where_and_clip_gradients():
    gradcheck(lambda a, b: where(MASK, a, b), [A.copy(), B.copy()])
    gradcheck(lambda a, b: where(MASK, a, b), [A.copy(), B[:, :1].copy()])
    gradcheck(lambda a: where(tensor(MASK), a, 0.0), [A.copy()])
    gradcheck(lambda a: clip(a, 0.8, 1.4), [A.copy()])
    gradcheck(lambda a: clip(a, high=B), [A.copy()])
    gradcheck(lambda a: clip(a, 0.8), [np.array(A[0, 0])])


def test_ties_and_zeros():
    a, b = tensor([1.0, 2.0], True), tensor([1.0, 1.0], True)
    maximum(a, b).sum().backward()
    np.testing.assert_array_equal(a.grad, [0.5, 1])
    np.testing.assert_array_equal(b.grad, [0.5, 0])
    zero = tensor([0.0, 0.0, 2.0], True)
    (zero ** np.array([0.0, 1.0, 2.0])).sum().backward()
    np.testing.assert_array_equal(zero.grad, [0, 1, 4])
    exponent = tensor([2.0, 3.0], True)
    (np.array([0.0, 2.0]) ** exponent).sum().backward()
    np.testing.assert_allclose(exponent.grad, [0, 8 * np.log(2)])


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: add(tensor(A), np.ones((2, 4))), r"add: .*broadcast.*\(3, 4\) float64, \(2, 4\) float64"),
        (lambda: multiply(tensor(A), "x"), "multiply takes tensors, arrays and numbers, not str"),
        (lambda: tensor(A) - [1, 2, 3, 4], r"list.*psf\.tensor"),
        (lambda: where(tensor(A), A, B), "condition must be of dtype bool, not float64"),
        (lambda: clip(A), "at least one of low and high"),
        (lambda: clip(A, np.zeros(3)), r"clip: .*\(3, 4\) float64, \(3,\) float64"),
    ],
)
def test_bad_input(call, words):
    with pytest.raises(ArgumentError, match=words):
        call()


def test_what_was_not_chosen_gets_exactly_nothing():
    a, b, x = (tensor(np.ones(2), True) for _ in range(3))
    seed = np.array([np.inf, np.nan])
    ops.where(np.array([True, False]), a, b).backward(seed)
    ops.clip(x * 3, 0, 2).backward(seed)
    np.testing.assert_array_equal(a.grad, [np.inf, 0])
    np.testing.assert_array_equal(b.grad, [0, np.nan])
    np.testing.assert_array_equal(x.grad, [0, 0])


def test_python_numbers_go_by_numpys_rules():
    for name, a, b in (("add", True, True), ("divide", 1, 0), ("power", -2.5, 0.5), ("logical_or", 0, 2)):
        with np.errstate(all="ignore"):
            found, wanted = getattr(ops, name)(a, b), np.asarray(getattr(np, name)(a, b))
        assert found.dtype == wanted.dtype
        np.testing.assert_array_equal(found.data, wanted)
    with pytest.raises(ArgumentError, match="add: Python integer 300"):
        ops.add(np.zeros(2, np.uint8), 300)


def test_the_slope_of_an_exponent_above_small_integers():
    exponent = tensor(np.array([1.5, 2.5]), True)
    ops.power(np.array([3, 4], np.int8), exponent).sum().backward()
    np.testing.assert_allclose(exponent.grad, [3**1.5 * np.log(3), 4**2.5 * np.log(4)])


@pytest.mark.parametrize("exponent", [3, 4, 3.0])
def test_small_whole_exponents(exponent):
    for kind in (np.float64, np.float32, np.float16, np.int32, bool):
        x = np.array([-2.0, -0.0, 1e-3, 3.25, np.inf][: None if kind(0.5) == 0.5 else 2]).astype(kind)
        found, wanted = ops.power(x, exponent).data, x**exponent
        assert found.dtype == wanted.dtype
        np.testing.assert_allclose(found.astype(np.float64), wanted.astype(np.float64), rtol=2e-7)
        np.testing.assert_array_equal(np.signbit(found), np.signbit(wanted))
