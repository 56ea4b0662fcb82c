import numpy as np
import pytest

from psframework.autograd import Function, SparseRows, no_grad, tensor
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
