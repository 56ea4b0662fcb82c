import numpy as np
import pytest

from psframework.autograd import Function, SparseRows, Tensor, no_grad, tensor
from psframework.errors import AutogradError
from psframework.testing.gradcheck import gradcheck


class ScaledProduct(Function):
    @staticmethod
    def forward(ctx, x, y, scale):
        assert isinstance(x, np.ndarray) and isinstance(y, np.ndarray)
        ctx.save_for_backward(x, y)
        ctx.scale = scale
        return x * y * scale

    @staticmethod
    def backward(ctx, gradient):
        x, y = ctx.saved
        return gradient * y * ctx.scale, gradient * x * ctx.scale if ctx.needs_input_grad[1] else None, None


def answering(answer):
    class Custom(Function):
        @staticmethod
        def forward(ctx, x):
            return x + 1

        @staticmethod
        def backward(ctx, gradient):
            return answer

    return Custom


def test_gradients():
    a, b = np.arange(1.0, 4), np.arange(4.0, 7)
    gradcheck(lambda x, y: ScaledProduct.apply(x, y, 3), [a, b])
    gradcheck(lambda x: ScaledProduct.apply(x, b, 3), [a])


def test_constants_record_nothing():
    t = tensor(np.ones(2), True)
    assert not ScaledProduct.apply(np.ones(2), np.ones(2), 1).requires_grad
    with no_grad():
        assert not ScaledProduct.apply(t, t, 1).requires_grad


def test_results_without_axes_and_other_dtypes_are_fitted():
    class Total(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.shape = x.shape
            return x.sum()

        @staticmethod
        def backward(ctx, gradient):
            return np.ones(ctx.shape, np.float64) * gradient

    t = tensor(np.ones(3, np.float32), True)
    out = Total.apply(t)
    out.backward()
    assert out.shape == () and t.grad.dtype == np.float32


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ((np.ones(3), None), "Custom.backward returned 2 gradients for 1 arguments"),
        (np.ones(2), r"returned shape \(2,\) for argument 0 of shape \(3,\)"),
    ],
)
def test_a_wrong_backward(answer, words):
    out = answering(answer).apply(tensor(np.ones(3), True))
    with pytest.raises(AutogradError, match=words):
        out.backward(np.ones(3))


def test_a_forward_that_returns_a_tensor():
    class Custom(Function):
        @staticmethod
        def forward(ctx, x):
            return tensor(x)

    with pytest.raises(AutogradError, match=r"Custom\.forward returned a Tensor"):
        Custom.apply(tensor(np.ones(3), True))


def test_both_methods_are_needed():
    with pytest.raises(NotImplementedError):
        Function.apply(1)


class Halves(Function):
    @staticmethod
    def forward(ctx, x, scale):
        ctx.half, ctx.scale = len(x) // 2, scale
        return scale * x[: ctx.half], scale * x[ctx.half :]

    @staticmethod
    def backward(ctx, first, second):
        zeros = np.zeros(ctx.half)
        return ctx.scale * np.concatenate([zeros if g is None else g for g in (first, second)]), None


def test_several_results():
    def both(x):
        first, second = Halves.apply(x, 3.0)
        return first * second

    gradcheck(both, [np.arange(1.0, 5)])
    x = tensor(np.ones(4), True)
    Halves.apply(x, 3.0)[1].sum().backward()
    np.testing.assert_array_equal(x.grad, [0, 0, 3, 3])
    with no_grad():
        first, _ = Halves.apply(x, 3.0)
    assert not first.requires_grad


def test_rows_as_a_gradient():
    class Rows(Function):
        @staticmethod
        def forward(ctx, table, ids):
            ctx.ids, ctx.shape = ids, table.shape
            return table[ids]

        @staticmethod
        def backward(ctx, gradient):
            return SparseRows(ctx.ids, gradient, ctx.shape), None

    t = tensor(np.ones((4, 2)), True)
    Rows.apply(t, np.array([1, 1])).sum().backward()
    np.testing.assert_array_equal(t.grad.values, [[2, 2]])


class Given(Function):
    """Answers what it was given to answer, and saves that."""

    @staticmethod
    def forward(ctx, x, answer):
        result = answer(x)
        ctx.save_for_backward(*(result if isinstance(result, tuple) else (result,)))
        return result

    @staticmethod
    def backward(ctx, *gradients):
        return sum(g.reshape(2) for g in gradients if g is not None), None


def test_results_that_are_no_floats_are_constants():
    x = tensor(np.ones(2), True)
    for answer in (lambda x: x > 0, lambda x: (x.argsort(), x > 0)):
        result = Given.apply(x, answer)
        assert not any(one.requires_grad for one in (result if isinstance(result, tuple) else [result]))
    number, index = Given.apply(x, lambda x: (x * 2, x.argsort()))
    assert number.requires_grad and not index.requires_grad


@pytest.mark.parametrize("answer", [None, {"x": 1}, "x", (np.ones(2), None)])
def test_a_forward_that_returns_no_arrays(answer):
    class Custom(Function):
        @staticmethod
        def forward(ctx, x):
            return answer

    for x in (tensor(np.ones(2), True), np.ones(2)):
        with pytest.raises(
            AutogradError, match=r"Custom\.forward returned (NoneType|dict|str): return an array"
        ):
            Custom.apply(x)


@pytest.mark.parametrize(
    "answer", [lambda x: x, lambda x: x.reshape(2, 1), lambda x: x[::-1], lambda x: (x[:1], x[1:])]
)
def test_a_result_may_be_the_memory_of_an_argument(answer):
    """A change of one is a change of both, for those who saved either."""
    x = tensor(np.ones(2), True)
    h = x * 1
    before, result = h * h, Given.apply(h, answer)
    first = result[0] if isinstance(result, tuple) else result
    with no_grad():
        first += 1
    with pytest.raises(AutogradError, match="backward of 'multiply' needs was changed"):
        before.sum().backward()
    with pytest.raises(AutogradError, match="backward of 'Given' needs was changed"):
        first.sum().backward()


def test_a_view_that_was_saved_is_watched_and_memory_beside_it_is_not():
    memory = np.ones(4)
    x, beside = Tensor(memory[:2], True), Tensor(memory[2:])
    out = ViewSaved.apply(x)
    beside *= 2
    out.sum().backward()
    np.testing.assert_array_equal(x.grad, [2, 2])
    out = ViewSaved.apply(x)
    with no_grad():
        x *= 2
    with pytest.raises(AutogradError, match="backward of 'ViewSaved' needs was changed"):
        out.sum().backward()


class ViewSaved(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x.reshape(-1, 1))
        return x**2

    @staticmethod
    def backward(ctx, gradient):
        return 2 * ctx.saved[0].reshape(gradient.shape) * gradient
