import numpy as np
import pytest

import psframework.nn.functional as F
from psframework import ops
from psframework.autograd import tensor
from psframework.errors import ArgumentError

X = np.random.default_rng(5).standard_normal((3, 4))


@pytest.mark.parametrize("ord", [None, 1, 2, 3, 0.5, np.inf, -np.inf])
@pytest.mark.parametrize("axis", [0, -1])
@pytest.mark.parametrize("keepdims", [False, True])
def test_values_are_numpys(ord, axis, keepdims):
    expected = np.linalg.norm(X, ord, axis, keepdims)
    np.testing.assert_allclose(ops.norm(X, ord, axis, keepdims).data, expected)


def test_without_an_order_it_is_over_any_axes():
    cube = X.reshape(3, 2, 2)
    np.testing.assert_allclose(ops.norm(cube).data, np.linalg.norm(cube))
    np.testing.assert_allclose(ops.norm(cube, axis=(1, 2)).data, np.linalg.norm(cube, axis=(1, 2)))


@pytest.mark.oracle
@pytest.mark.parametrize("ord", [1, 2, 3, np.inf, -np.inf])
def test_derivatives_at_zero_and_at_ties_are_torchs(ord):
    torch = pytest.importorskip("torch")
    rows = [[0.0, 0, 0], [3, -3, 0], [0, 1, -2]]
    mine, other = tensor(rows, True), torch.tensor(rows, dtype=torch.float64, requires_grad=True)
    ops.norm(mine, ord, 1).sum().backward()
    torch.linalg.vector_norm(other, ord, 1).sum().backward()
    np.testing.assert_allclose(mine.grad, other.grad.numpy(), atol=1e-15)


@pytest.mark.oracle
def test_normalize_is_torchs():
    torch = pytest.importorskip("torch")
    rows = np.concatenate([X, np.zeros((1, 4))])
    mine, other = tensor(rows, True), torch.tensor(rows, requires_grad=True)
    (F.normalize(mine) * np.arange(4.0)).sum().backward()
    (torch.nn.functional.normalize(other) * torch.arange(4.0)).sum().backward()
    np.testing.assert_allclose(mine.grad, other.grad.numpy(), atol=1e-12)


def test_float16_does_not_overflow_inside():
    t = tensor(np.full(10, 300.0), True, dtype=np.float16)
    out = ops.norm(t)
    out.backward()
    np.testing.assert_allclose(float(out), 300 * np.sqrt(10), rtol=1e-3)
    np.testing.assert_allclose(t.grad.astype(float), 1 / np.sqrt(10), rtol=1e-3)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: ops.norm(X, 2), r"norm: ord=2 over axes \(0, 1\) is a norm of matrices"),
        (lambda: ops.norm(X, -1, 0), "norm: ord=-1 is neither above 0 nor -inf"),
        (lambda: ops.norm(np.arange(3)), "norm: dtype int64 is not floating"),
    ],
)
def test_bad_input(call, words):
    with pytest.raises(ArgumentError, match=words):
        call()


def test_the_largest_of_nothing_is_refused():
    with pytest.raises(ArgumentError, match="norm: zero-size"):
        ops.norm(np.zeros((0, 2)), np.inf, 0)
