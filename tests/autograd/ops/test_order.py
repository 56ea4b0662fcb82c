import numpy as np
import pytest

from psframework import ops
from psframework.autograd import tensor
from psframework.errors import ArgumentError

X = np.random.default_rng(4).permutation(60).reshape(3, 4, 5).astype(float)


@pytest.mark.parametrize("axis", [None, 0, 1, -1])
def test_sorting_is_numpys(axis):
    np.testing.assert_array_equal(ops.sort(X, axis).data, np.sort(X, axis))
    np.testing.assert_array_equal(ops.argsort(X, axis).data, np.argsort(X, axis))
    np.testing.assert_array_equal(ops.sort(tensor(X, True), axis).data, np.sort(X, axis))
    np.testing.assert_array_equal(ops.sort(X, axis, descending=True).data, -np.sort(-X, axis))
    np.testing.assert_array_equal(ops.median(X, axis).data, np.median(X, axis))


def test_equal_elements_stay_in_order_either_way():
    ties = np.array([2.0, 1, 2, 1, 1])
    assert ops.argsort(ties).tolist() == [1, 3, 4, 0, 2]
    assert ops.argsort(ties, descending=True).tolist() == [0, 2, 1, 3, 4]
    t = tensor(ties, True)
    (ops.sort(t) * np.arange(5.0)).sum().backward()
    np.testing.assert_array_equal(t.grad, [3, 0, 4, 1, 2])


@pytest.mark.parametrize("k", [0, 1, 3, 4])
@pytest.mark.parametrize("largest", [True, False])
def test_topk_of_a_middle_axis(k, largest):
    t = tensor(X, True)
    values, indices = ops.topk(t, k, axis=1, largest=largest)
    ordered = np.sort(X, 1)[:, ::-1] if largest else np.sort(X, 1)
    np.testing.assert_array_equal(values.data, ordered[:, :k])
    np.testing.assert_array_equal(np.take_along_axis(X, indices.data, 1), values.data)
    assert indices.dtype == np.int64 and not indices.requires_grad
    values.sum().backward()
    chosen = np.zeros(X.shape)
    np.put_along_axis(chosen, indices.data, 1, 1)
    np.testing.assert_array_equal(t.grad, chosen)


def test_topk_has_names_and_may_be_unsorted():
    found = ops.topk(tensor(X, True), 2, sorted=False)
    np.testing.assert_array_equal(np.sort(found.values.data), np.sort(X)[..., -2:])
    assert found.indices.shape == (3, 4, 2)
    assert ops.topk(np.array([3, 1, 2], np.uint8), 2).values.tolist() == [3, 2]


def test_nan_is_behind_everything():
    x = np.array([[1.0, np.nan, 3], [4, 5, 6]])
    np.testing.assert_array_equal(ops.sort(x).data, np.sort(x))
    np.testing.assert_array_equal(ops.median(x, 1).data, np.median(x, 1))
    np.testing.assert_array_equal(ops.topk(x, 2).values.data, [[np.nan, 3], [6, 5]])


@pytest.mark.oracle
def test_gradients_are_torchs():
    torch = pytest.importorskip("torch")
    weights = np.arange(20.0).reshape(4, 5)
    mine, other = tensor(X, True), torch.tensor(X, requires_grad=True)
    (ops.sort(mine, 2, descending=True) * weights).sum().backward()
    (torch.sort(other, 2, descending=True).values * torch.tensor(weights)).sum().backward()
    np.testing.assert_array_equal(mine.grad, other.grad.numpy())
    values, indices = ops.topk(X, 3, 0)
    expected = torch.topk(other, 3, 0)
    np.testing.assert_array_equal(values.data, expected.values.detach().numpy())
    np.testing.assert_array_equal(indices.data, expected.indices.numpy())


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: ops.topk(X, 5, 1), "topk: k=5 of an axis of 4 elements"),
        (lambda: ops.sort(X, 3), "sort: axis 3 of an array of 3 axes"),
        (lambda: ops.median(np.zeros((0, 2)), 0), "median: no elements along axis 0"),
        (lambda: ops.topk(np.float64(1), 1), "topk: axis -1 of an array of 0 axes"),
    ],
)
def test_bad_input(call, words):
    with pytest.raises(ArgumentError, match=words):
        call()
