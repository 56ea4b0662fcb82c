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
    "broadcast_to": (lambda x: shape.broadcast_to(x, (2, 3, 4)), np.broadcast_to(ONES, (2, 3, 4)), [ONES]),
    "broadcast_to a length": (lambda x: shape.broadcast_to(x, 3), np.full(3, 1.5), [SCALAR]),
    "expand_dims": (lambda x: shape.expand_dims(x, (0, -2)), np.expand_dims(X, (0, -2)), [X]),
    "expand_dims one": (lambda x: shape.expand_dims(x, -1), np.expand_dims(X, -1), [X]),
    "ravel": (shape.ravel, X.ravel(), [X]),
    "ravel strided": (shape.ravel, STRIDED.ravel(), [STRIDED]),
    "ravel empty": (shape.ravel, EMPTY.ravel(), [EMPTY]),
    "moveaxis": (lambda x: shape.moveaxis(x, 0, -1), np.moveaxis(X, 0, -1), [X]),
    "moveaxis several": (lambda x: shape.moveaxis(x, (-1, 0), (0, 1)), np.moveaxis(X, (-1, 0), (0, 1)), [X]),
    "atleast_1d": (shape.atleast_1d, np.atleast_1d(SCALAR), [SCALAR]),
    "atleast_2d": (shape.atleast_2d, np.atleast_2d(X[0, 0]), [X[0, 0].copy()]),
    "atleast_3d of a number": (shape.atleast_3d, np.atleast_3d(SCALAR), [SCALAR]),
    "atleast_3d of a vector": (shape.atleast_3d, np.atleast_3d(X[0, 0]), [X[0, 0].copy()]),
    "atleast_3d of a matrix": (shape.atleast_3d, np.atleast_3d(X[0]), [X[0].copy()]),
    "expand no axes": (lambda x: shape.expand(x, (2, 2)), np.full((2, 2), 1.5), [SCALAR]),
}


@pytest.mark.parametrize("case", CASES)
def test_values_and_gradients(case):
    op, expected, inputs = CASES[case]
    np.testing.assert_array_equal(op(*inputs).data, expected)
    gradcheck(op, inputs)


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
        (lambda: shape.broadcast_to(X, (-1, 3, 4)), "negative length"),
        (lambda: shape.expand_dims(X, (0, 4 + 1)), "axis 5"),
        (lambda: shape.moveaxis(X, (0, 1), 2), "2 axes to 1 places"),
        (lambda: shape.moveaxis(X, 3, 2), "axis 3"),
    ],
)
def test_bad_input(call, words):
    with pytest.raises(ArgumentError, match=words):
        call()
