import numpy as np
import pytest

from psframework.autograd import no_grad, tensor
from psframework.autograd.ops import shape
from psframework.errors import ArgumentError
from psframework.testing.gradcheck import gradcheck

rng = np.random.default_rng(3)
X = rng.standard_normal((2, 3, 4))
ONES = rng.standard_normal((1, 3, 1))
SCALAR, EMPTY, STRIDED = np.array(1.5), np.zeros((0, 3, 4)), rng.standard_normal((4, 6, 8))[::2, ::2, ::-2]

CASES = {
    "reshape": (lambda x: shape.reshape(x, (4, -1)), np.reshape(X, (4, -1)), [X]),
    "reshape strided": (lambda x: shape.reshape(x, 24), STRIDED.reshape(24), [STRIDED]),
    "reshape no axes": (lambda x: shape.reshape(x, (1, 1)), SCALAR.reshape(1, 1), [SCALAR]),
    "reshape empty": (lambda x: shape.reshape(x, (3, 0)), EMPTY.reshape(3, 0), [EMPTY]),
    "transpose": (shape.transpose, X.T, [X]),
    "transpose axes": (lambda x: shape.transpose(x, (1, -1, 0)), X.transpose(1, 2, 0), [X]),
    "swapaxes": (lambda x: shape.swapaxes(x, -1, 0), X.swapaxes(-1, 0), [X]),
    "flatten": (shape.flatten, X.reshape(-1), [X]),
    "flatten from 1": (lambda x: shape.flatten(x, 1), X.reshape(2, 12), [X]),
    "flatten empty": (lambda x: shape.flatten(x, 1), EMPTY.reshape(0, 12), [EMPTY]),
    "flatten no axes": (shape.flatten, SCALAR.reshape(1), [SCALAR]),
    "squeeze": (shape.squeeze, ONES.squeeze(), [ONES]),
    "squeeze axis": (lambda x: shape.squeeze(x, -1), ONES.squeeze(-1), [ONES]),
    "unsqueeze": (lambda x: shape.unsqueeze(x, 1), X[:, None], [X]),
    "unsqueeze last": (lambda x: shape.unsqueeze(x, -1), X[..., None], [X]),
    "expand": (lambda x: shape.expand(x, (2, 5, -1, 4)), np.broadcast_to(ONES, (2, 5, 3, 4)), [ONES]),
    "expand no axes": (lambda x: shape.expand(x, (2, 2)), np.full((2, 2), 1.5), [SCALAR]),
    "concatenate": (lambda a, b: shape.concatenate([a, b], 1), np.concatenate([X, STRIDED], 1), [X, STRIDED]),
    "concatenate empty": (lambda a, b: shape.concatenate([a, b]), X, [EMPTY, X]),
    "stack": (lambda a, b: shape.stack([a, b], -1), np.stack([X, STRIDED], -1), [X, STRIDED]),
    "stack no axes": (lambda a, b: shape.stack([a, b]), np.array([1.5, 2.0]), [SCALAR, np.array(2.0)]),
}


@pytest.mark.parametrize("case", CASES)
def test_values_and_gradients(case):
    op, expected, inputs = CASES[case]
    np.testing.assert_array_equal(op(*inputs).data, expected)
    gradcheck(op, inputs)


def test_one_tensor_many_times():
    t = tensor(X, True)
    shape.concatenate([t, t, X]).sum().backward()
    np.testing.assert_array_equal(t.grad, np.full(X.shape, 2.0))


def test_methods():
    t = tensor(X)
    assert t.reshape(4, 6).shape == t.reshape((4, 6)).shape == (4, 6)
    assert t.transpose(2, 0, 1).shape == t.permute((2, 0, 1)).shape == (4, 2, 3)
    assert t.transpose().shape == t.T.shape == (4, 3, 2)
    assert t.unsqueeze(0).expand(5, -1, -1, -1).shape == (5, 2, 3, 4)


def test_views_share_a_version_and_copies_do_not():
    t = tensor(X)
    view, copied = t.reshape(6, 4), t.T.reshape(24)
    with no_grad():
        t += 1
    assert (t.version, view.version, copied.version) == (1, 1, 0)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: shape.reshape(X, (5, 5)), r"reshape: 24 elements of shape \(2, 3, 4\) into \(5, 5\)"),
        (lambda: shape.transpose(X, (0, 0, 1)), "no order of 3 axes"),
        (lambda: shape.transpose(X, (0, 1, 7)), "no order of 3 axes"),
        (lambda: shape.swapaxes(X, 0, 3), "axis 3"),
        (lambda: shape.flatten(X, 2, 1), "comes after"),
        (lambda: shape.squeeze(X, 0), "not of length 1"),
        (lambda: shape.expand(X, (5, 3, 4)), "does not broadcast"),
        (lambda: shape.concatenate([]), "no tensors"),
        (lambda: shape.concatenate([X, X[:, :, :2]]), "differ outside axis 0"),
        (lambda: shape.stack([X, X[0]]), "of one shape"),
    ],
)
def test_bad_input(call, words):
    with pytest.raises(ArgumentError, match=words):
        call()
