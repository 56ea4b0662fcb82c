import copy

import numpy as np
import pytest

from psframework.autograd import Tensor, tensor
from psframework.errors import ArgumentError, AutogradError

X = np.arange(6.0).reshape(2, 3)


def test_attributes():
    t = Tensor(X)
    assert t.data is X and t.numpy() is X
    assert (t.shape, t.dtype, t.ndim, t.size, t.version) == ((2, 3), np.float64, 2, 6, 0)
    assert t.is_leaf and t.node is None and t.grad is None and t.grad_buffer is None and not t.requires_grad


def test_conversions():
    t = tensor([1.5])
    assert (t.item(), float(t), int(t), len(t), bool(t), t.tolist()) == (1.5, 1.5, 1, 1, True, [1.5])
    assert [10, 20][tensor(1)] == 20
    np.testing.assert_array_equal(np.asarray(tensor(X)), X)


def test_data_is_assignable_and_unseen():
    t = tensor(X, True)
    out = (t * t).sum()
    t.data = np.zeros(3)
    t.data += 1
    assert t.shape == (3,) and t.version == 0 and t.requires_grad
    del out


def test_integers_cannot_require_grad():
    for data in (np.arange(3), np.array([True]), np.array([1j])):
        with pytest.raises(AutogradError, match="only floating dtypes"):
            Tensor(data, requires_grad=True)
        with pytest.raises(AutogradError, match="only floating dtypes"):
            Tensor(data).requires_grad_()


def test_requires_grad_of_a_result():
    h = tensor(X).requires_grad_() * 2
    with pytest.raises(AutogradError, match=r"'multiply' cannot be cleared: use \.detach"):
        h.requires_grad = False


def test_a_copy_has_no_graph():
    leaf = tensor(X, True)
    leaf.grad = np.ones_like(X)
    twin = copy.deepcopy(leaf)
    assert twin.requires_grad and twin.data is not leaf.data and twin.grad is not leaf.grad
    with pytest.raises(AutogradError, match=r"'multiply' can't be copied.*detach\(\).*clone\(\)"):
        copy.deepcopy(leaf * 2)


def test_repr():
    assert repr(tensor([1.0])) == "tensor([1.])"
    assert repr(tensor([1.0], True)) == "tensor([1.], requires_grad=True)"
    assert repr(tensor([1.0], True) + 1) == "tensor([2.], node=add)"
    assert f"{tensor(1.25, True):.1f} {tensor([1.0])} {tensor([1.0]):>13}" == "1.2 tensor([1.])  tensor([1.])"


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda t: t.item(), "no single number: index or reduce"),
        (lambda t: bool(t > 1), "no single number"),
        (float, "no single number"),
        (lambda t: f"{t:.2f}", r"shape \(2, 3\) takes no format '.2f'"),
        (lambda t: Tensor([1.0]), r"takes an array, not list: use psf\.tensor"),
        (lambda t: setattr(t, "data", 1.0), "must be an array"),
        (lambda t: setattr(t, "grad", [1.0]), "must be an array or None"),
        (lambda t: setattr(t, "grad", np.zeros((2, 3), int)), r"dtype int64 for .* float64: use \.astype"),
        (lambda t: setattr(t, "grad", np.zeros(2)), r"shape \(2,\) for a tensor of shape \(2, 3\)"),
    ],
)
def test_bad_input(call, words):
    with pytest.raises(ArgumentError, match=words):
        call(tensor(X))
