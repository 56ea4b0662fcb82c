"""Gradients that are written where their owner wants them, and those that must not be."""

import threading
from typing import Any

import numpy as np
import pytest

import psframework as psf
from psframework.autograd import Context, Function
from psframework.autograd.engine import backward, grad
from psframework.autograd.offers import claim, offering, summing, total_of
from psframework.nn import functional as F


def test_an_offer_is_for_the_first_who_claims_it_in_this_thread() -> None:
    leaf, other, array = weight(), weight(), np.zeros((2, 3))
    assert claim(leaf) is None
    with offering(places := {leaf: array}):
        assert claim(other) is None
        elsewhere: list[object] = []
        thread = threading.Thread(target=lambda: elsewhere.append(claim(leaf)))
        thread.start()
        thread.join()
        assert elsewhere == [None]
        assert claim(leaf) is array
        assert claim(leaf) is None and not places
        with offering({other: array}):
            assert claim(other) is array
    with offering({leaf: array}):
        pass
    assert claim(leaf) is None


def weight(dtype: str = "float64") -> Any:
    made = psf.tensor(np.arange(6.0).reshape(2, 3).astype(dtype), requires_grad=True)
    made.grad_buffer = np.full((2, 3), 9.0, dtype)
    return made


@pytest.mark.parametrize("rows", [0, 1, 4])
def test_linear_writes_the_gradient_of_its_weight_into_the_buffer(rows: int) -> None:
    x = np.random.default_rng(0).normal(size=(rows, 3))
    w = weight()
    expected = backward(F.linear(x, w).sum())[w]
    assert expected is not w.grad_buffer and (w.grad_buffer == 9).all()  # nothing was offered
    loss = F.linear(x, w).sum()
    with offering({w: w.grad_buffer}):
        loss.backward()
    assert w.grad is w.grad_buffer
    np.testing.assert_array_equal(w.grad, expected)


def test_a_weight_that_is_used_twice_gets_the_sum() -> None:
    x = np.random.default_rng(0).normal(size=(4, 3))
    w = weight()
    expected: Any = backward((F.linear(x, w) * F.linear(2 * x, w)).sum())[w]
    loss = (F.linear(x, w) * F.linear(2 * x, w)).sum()
    with offering({w: w.grad_buffer}):
        loss.backward()
    assert w.grad is w.grad_buffer
    np.testing.assert_allclose(w.grad, expected, rtol=1e-12)


def test_other_dtypes_are_copied() -> None:
    w = weight("float16")
    x = np.ones((4, 3), np.float16)
    loss = F.linear(x, w).sum()
    with offering({w: w.grad_buffer}):
        loss.backward()
    assert w.grad is w.grad_buffer and (w.grad == 4).all()


def test_totals_are_for_this_thread_and_this_block() -> None:
    leaf, total = weight(), np.zeros((2, 3))
    assert total_of(leaf) is None
    with summing({leaf: total}):
        elsewhere: list[object] = []
        thread = threading.Thread(target=lambda: elsewhere.append(total_of(leaf)))
        thread.start()
        thread.join()
        assert elsewhere == [None]
        assert total_of(leaf) is total and total_of(weight()) is None
    assert total_of(leaf) is None


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
@pytest.mark.parametrize("shape", [(4, 3), (0, 3), (2, 4, 3), (3,)])
def test_linear_adds_the_gradient_of_its_weight_to_the_total(shape: tuple[int, ...], dtype: str) -> None:
    rng = np.random.default_rng(0)
    x = rng.integers(-3, 3, shape).astype(dtype)
    w = weight(dtype)
    expected: Any = backward(F.linear(x, w).sum())[w]
    total = np.full((2, 3), 5.0, dtype)
    with summing({w: total}):
        found = backward(F.linear(x, w).sum())
    if dtype == "float16":  # whose sums are kept wider
        np.testing.assert_array_equal(found[w], expected)
        assert (total == 5).all()
    else:
        assert w not in found
        np.testing.assert_array_equal(total, 5 + expected)


def test_each_use_of_a_weight_adds_to_the_total_and_other_leaves_answer() -> None:
    x = np.random.default_rng(0).normal(size=(4, 3))
    w, bias = weight(), psf.tensor(np.zeros(2), requires_grad=True)
    expected: Any = backward((F.linear(x, w) * F.linear(2 * x, w, bias)).sum())
    total = np.zeros((2, 3))
    with summing({w: total}):
        found = backward((F.linear(x, w) * F.linear(2 * x, w, bias)).sum())
    np.testing.assert_allclose(total, expected[w], rtol=1e-14)
    assert list(found) == [bias]


def test_a_weight_that_is_computed_gets_its_gradient() -> None:
    """Only leaves have totals: what a weight is made of needs the gradient."""
    x, w = np.ones((4, 3)), weight()
    total = np.zeros((2, 3))
    with summing({w: total}):
        found = backward(F.linear(x, w * 2).sum())
    np.testing.assert_array_equal(found[w], np.full((2, 3), 8.0))
    assert not total.any()


@pytest.mark.parametrize("inner", ["backward", "grad"])
def test_a_backward_inside_of_a_rule_adds_nothing_to_the_totals(inner: str) -> None:
    """What it finds is for the rule."""
    w, total = weight(), np.zeros((2, 3))

    class Inner(Function):
        @staticmethod
        def forward(ctx: Context, x: Any, weight: Any) -> Any:
            ctx.save_for_backward(x)
            return x @ weight.T

        @staticmethod
        def backward(ctx: Context, gradient: Any) -> Any:
            x = psf.tensor(ctx.saved[0], requires_grad=True)
            out = F.linear(x, w)
            if inner == "grad":
                return grad(out, [x, w], gradient)
            found = backward(out, gradient)
            return found[x], found[w]

    x = psf.tensor(np.ones((4, 3)), requires_grad=True)
    with summing({w: total}):
        found = backward(Inner.apply(x, w).sum())
    np.testing.assert_array_equal(found[w], np.full((2, 3), 4.0))
    assert not total.any()


def test_gradients_that_a_hook_asks_for_add_nothing_to_the_totals() -> None:
    w, total = weight(), np.zeros((2, 3))
    seen: list[Any] = []

    def hook(gradient: Any) -> None:
        x = psf.tensor(np.ones((4, 3)), requires_grad=True)
        seen.extend(grad(F.linear(x, w).sum(), x))

    x = psf.tensor(np.ones((4, 3)), requires_grad=True)
    doubled = x * 2
    doubled.register_hook(hook)
    with summing({w: total}):
        backward(doubled.sum())
    assert len(seen) == 1 and not total.any()
