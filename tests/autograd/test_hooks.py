import numpy as np
import pytest

from psframework.autograd import SparseRows, no_grad, tensor
from psframework.autograd.hooks import Keeper
from psframework.errors import ArgumentError, AutogradError

X = np.array([1.0, 2.0, 3.0])


def test_hooks_see_and_replace_gradients():
    x = tensor(X, True)
    h = x * 2
    seen = []
    h.register_hook(lambda g: seen.append(g.copy()))
    h.register_hook(lambda g: g * 10)
    remove = x.register_hook(lambda g: g + 1)
    (h * 3).sum().backward()
    np.testing.assert_array_equal(seen[0], [3, 3, 3])
    np.testing.assert_array_equal(x.grad, [61, 61, 61])
    remove()
    remove()
    x.grad = None
    x.sum().backward()
    np.testing.assert_array_equal(x.grad, [1, 1, 1])
    x.register_hook(lambda g: g[:1])
    with pytest.raises(
        AutogradError, match=r"leaf of shape \(3,\) returned shape \(1,\): return one of shape \(3,\)"
    ):
        x.sum().backward()


def test_retain_grad():
    x = tensor(X, True)
    h = x * 2
    h.retain_grad()
    loss = (h * h).sum()
    loss.backward(retain_graph=True)
    np.testing.assert_array_equal(h.grad, 4 * X)
    loss.backward()
    np.testing.assert_array_equal(h.grad, 8 * X)


def test_what_a_hook_keeps_is_not_accumulated_into():
    seen, kept = [], np.full(2, 9.0)
    x, y = (tensor(np.ones(2), requires_grad=True) for _ in range(2))
    x.register_hook(seen.append)
    y.register_hook(lambda g: kept)
    for _ in range(2):
        (x * 2 + y).sum().backward()
    np.testing.assert_array_equal(x.grad, [4.0, 4.0])
    np.testing.assert_array_equal(y.grad, [18.0, 18.0])
    np.testing.assert_array_equal(seen, [[2.0, 2.0], [2.0, 2.0]])
    np.testing.assert_array_equal(kept, [9.0, 9.0])


def test_a_hook_may_remove_itself_and_each_registration_is_one():
    x, calls = tensor(X, True), []

    def once(gradient):
        calls.append(gradient)
        remove()
        return gradient * 2

    remove = x.register_hook(once)
    for _ in range(2):
        x.sum().backward()
    np.testing.assert_array_equal(x.grad, [3, 3, 3])
    remove_one = x.register_hook(calls.append)
    x.register_hook(calls.append)
    remove_one()
    remove_one()
    x.sum().backward()
    assert len(calls) == 2
    with pytest.raises(ArgumentError, match="callable, not int"):
        x.register_hook(1)
    with pytest.raises(AutogradError, match="set requires_grad=True"):
        tensor(X).register_hook(print)


@pytest.mark.parametrize("leaf", [True, False])
def test_an_error_in_a_hook_says_whose_and_leaves_no_grad(leaf):
    x, w = tensor(X, True), tensor(X, True)
    h = x * 1
    remove = (x if leaf else h).register_hook(lambda gradient: gradient / 0 if calls.append(1) else {}["key"])
    calls = []
    with pytest.raises(KeyError) as info:
        (h * w).sum().backward()
    assert info.value.__notes__ == [
        "in a hook on the gradient of " + ("a leaf of shape (3,)" if leaf else "'multiply'")
    ]
    assert x.grad is None and w.grad is None
    remove()
    (x * w).sum().backward()
    np.testing.assert_array_equal(x.grad, X)


def test_rows_that_a_hook_answers_inside_the_graph_become_an_array():
    x = tensor(np.ones((2, 1)), True)
    h = x * 2
    h.register_hook(lambda gradient: SparseRows(np.array([1]), np.ones((1, 1)), (2, 1)))
    h.sum().backward()
    np.testing.assert_array_equal(x.grad, [[0], [2]])


def test_retain_grad_counts_once_and_comes_after_all_hooks():
    x = tensor(X, True)
    h = x * 2
    h.retain_grad()
    h.retain_grad()
    h.register_hook(lambda gradient: gradient * 10)
    h.sum().backward()
    np.testing.assert_array_equal(h.grad, [10, 10, 10])
    x.retain_grad()  # leaves do so anyway
    with pytest.raises(AutogradError, match="requires_grad=True"):
        tensor(X).retain_grad()


def test_after_a_change_in_place_the_gradient_is_of_what_the_tensor_is_now():
    """As in torch; other hooks stay with the value that they were registered for."""
    seen = []
    for change in (lambda h: h.__imul__(3), lambda h: h.__setitem__(slice(None), h * 3)):
        x = tensor(X, True)
        h = x * 1
        h.retain_grad()
        h.register_hook(seen.append)
        change(h)
        h.sum().backward()
        np.testing.assert_array_equal(h.grad, [1, 1, 1])
        np.testing.assert_array_equal(x.grad, [3, 3, 3])
    np.testing.assert_array_equal(seen, [[3, 3, 3]] * 2)
    h = tensor(X, True) * 1
    h.retain_grad()
    with no_grad():
        h *= 3
    h.sum().backward()
    np.testing.assert_array_equal(h.grad, [1, 1, 1])


def test_a_keeper_does_not_own_its_tensor():
    h = tensor(X, True) * 1
    keeper = Keeper(h)
    del h
    assert keeper.tensor() is None
    keeper(X)
