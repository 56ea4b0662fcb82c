import ml_dtypes
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes

from psframework import ops
from psframework.autograd import tensor
from psframework.autograd.ops import reduce
from psframework.errors import ArgumentError, AutogradError
from psframework.testing.gradcheck import gradcheck

rng = np.random.default_rng(2)
X = rng.permutation(24).astype(float).reshape(2, 3, 4)
NAMES = ("sum", "mean", "max", "min", "var", "std", "prod", "ptp", "norm", "logsumexp", "median")
NEEDS = {"mean": 1, "max": 1, "min": 1, "ptp": 1, "median": 1, "var": 1, "std": 2}  # elements, to be defined


def reference(name):
    if name == "norm":
        return lambda x, axis, keepdims: np.sqrt(np.sum(x * x, axis, keepdims=keepdims))
    if name == "logsumexp":
        return lambda x, axis, keepdims: np.log(np.sum(np.exp(x), axis, keepdims=keepdims))
    return lambda x, axis, keepdims: getattr(np, name)(x, axis=axis, keepdims=keepdims)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_values_and_gradients_for_any_shape_and_axes(data):
    name = data.draw(st.sampled_from(NAMES))
    shape = data.draw(array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3))
    several = st.lists(st.integers(-len(shape), len(shape) - 1), unique_by=lambda i: i % len(shape)).map(
        tuple
    )
    single = st.integers(-len(shape), len(shape) - 1)
    choices = [st.none(), *([single] if shape else []), *([several] if shape and name != "median" else [])]
    axis, keepdims = data.draw(st.one_of(choices)), data.draw(st.booleans())
    kept = range(len(shape)) if axis is None else np.atleast_1d(axis).astype(int)
    count = int(np.prod([shape[i] for i in kept]))
    assume(count >= NEEDS.get(name, 0))
    # No ties, which have no derivative, and nothing near 0.
    size = int(np.prod(shape))
    x = np.asarray((np.random.default_rng(size).permutation(size) * 2 - size + 0.5) / 8).reshape(shape)
    with np.errstate(divide="ignore"):
        expected = reference(name)(x, axis, keepdims)
    op = getattr(ops, name)
    np.testing.assert_allclose(op(x, axis=axis, keepdims=keepdims).data, expected, rtol=1e-12, atol=1e-12)
    gradcheck(lambda t: op(t, axis=axis, keepdims=keepdims), [x])


def test_ddof_is_numpys():
    gradcheck(lambda x: reduce.var(x, 1, ddof=1), [X.copy()], step=1e-5)
    np.testing.assert_allclose(reduce.var(X, ddof=1).data, X.var(ddof=1))


def test_equal_maxima_share_the_gradient():
    t = tensor([[1.0, 3.0, 3.0], [2.0, 2.0, 2.0]], True)
    t.max(axis=1).sum().backward()
    np.testing.assert_allclose(t.grad, [[0, 0.5, 0.5], [1 / 3] * 3])


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("op", [reduce.sum, reduce.mean, reduce.var], ids=lambda op: op.__name__)
def test_16_bits_accumulate_in_float32(op, dtype):
    x = np.full(10_000, 0.1, dtype)
    x[::2] = 0.3
    t = tensor(x, True)
    out = op(t)
    exact = getattr(np, op.__name__)(x.astype(np.float64))
    assert out.dtype == dtype
    np.testing.assert_allclose(float(out), exact, rtol=float(ml_dtypes.finfo(dtype).eps))
    out.backward()
    assert t.grad.dtype == dtype


def test_integers():
    for dtype in (np.int8, np.uint8, np.bool_):
        for x in (np.ones(300, dtype), np.array(1, dtype)):
            assert reduce.sum(x).dtype == x.sum().dtype and reduce.sum(x).item() == x.size
    assert reduce.mean(np.array([1, 2])).item() == 1.5
    for name in ("argmax", "argmin"):
        for axis, keepdims in ((None, False), (1, False), (-1, True), (None, True)):
            found, expected = (
                getattr(reduce, name)(X, axis, keepdims),
                getattr(np, name)(X, axis, keepdims=keepdims),
            )
            assert found.dtype == np.int64
            np.testing.assert_array_equal(found.data, expected)


@pytest.mark.parametrize(
    "op", [ops.max, ops.min, ops.norm, ops.logsumexp, ops.std], ids=lambda op: op.__name__
)
def test_a_result_that_backward_needs_is_not_to_be_changed(op):
    t = tensor(X, True)
    out = op(t)
    out += 1
    with pytest.raises(AutogradError, match="changed in place"):
        out.backward()


def test_weights_count_elements():
    weights = np.array([1.0, 2.0, 5.0])
    np.testing.assert_allclose(reduce.average(X, 1, weights).data, np.average(X, 1, weights))
    np.testing.assert_allclose(reduce.average(X, (0, 1), np.exp(-X)).data, np.average(X, (0, 1), np.exp(-X)))
    np.testing.assert_allclose(reduce.average(X, -1).data, X.mean(-1))
    gradcheck(lambda x, w: reduce.average(x, 1, w, True), [X.copy(), weights])


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: reduce.sum(X, 3), "sum: axis 3 of an array of 3 axes"),
        (lambda: reduce.mean(X, (0, -3)), "named twice"),
        (lambda: reduce.max(np.zeros((0, 3)), 0), "max: no elements along axis 0"),
        (lambda: reduce.var(np.zeros(1), ddof=1), "at least 2 are needed"),
        (lambda: reduce.sum(X, "a"), "axis 'a'"),
        (lambda: reduce.argmin(X[:0]), "argmin: no elements along axis None"),
        (lambda: reduce.average(X, 0, np.ones(3)), r"average: weights of shape \(3,\) for shape \(2, 3, 4\)"),
    ],
)
def test_bad_input(call, words):
    with pytest.raises(ArgumentError, match=words):
        call()


def test_a_deviation_of_nothing_has_no_slope():
    x = tensor([[2.0, 2.0], [1.0, 3.0]], True)
    deviation = ops.std(x, 1)
    deviation.sum().backward()
    np.testing.assert_array_equal(x.grad, [[0, 0], [-0.5, 0.5]])
    x.grad = None
    ops.std(x, ()).sum().backward()
    np.testing.assert_array_equal(x.grad, np.zeros((2, 2)))


ONE_AXIS = (
    "cumsum",
    "cumprod",
    "sort",
    "argsort",
    "argmax",
    "median",
    "diff",
    "topk",
    "unsqueeze",
    "softmax",
)


@pytest.mark.parametrize("name", ONE_AXIS)
def test_one_axis_means_one(name):
    k = (1,) if name == "topk" else ()
    for axis in ((0,), (0, 1), (), 1.0):
        with pytest.raises(ArgumentError, match=f"^{name}: one axis"):
            getattr(ops, name)(np.ones((2, 2)), *k, axis=axis)


NAMED = ("sum", "mean", "max", "ptp", "std", "var", "average", "median", "prod", "norm", "logsumexp", "any")


@pytest.mark.parametrize("name", NAMED)
def test_an_axis_that_is_not_there_is_refused_by_name(name):
    with pytest.raises(ArgumentError, match=f"^{name}: axis 2 "):
        getattr(ops, name)(np.ones((2, 2)), axis=2)
