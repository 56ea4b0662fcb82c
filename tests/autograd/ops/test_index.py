import numpy as np
import pytest

from psframework.autograd import tensor
from psframework.autograd.ops.index import add_at, index
from psframework.errors import ArgumentError
from psframework.testing.gradcheck import gradcheck

rng = np.random.default_rng(4)
X = rng.standard_normal((5, 4, 3))
KEYS = {
    "integer": 2,
    "negative": -1,
    "slice": slice(1, 4, 2),
    "backwards": slice(None, None, -1),
    "ellipsis": (..., 1),
    "new axis": (slice(None), None, 2),
    "no place": (),
    "element": (1, 2, 0),
    "empty slice": slice(3, 3),
    "rows": np.array([0, 3, 1]),
    "rows again": np.array([0, 3, 0, 0, -5, -2, 3]),
    "two axes of rows": np.array([[0, 1], [1, 4]]),
    "list": [0, 0, 2],
    "no rows": np.array([], np.int64),
    "several arrays": (np.array([0, 0, 1]), np.array([1, 1, 2])),
    "array and slice": (slice(None), np.array([1, 1, 3])),
    "mask of rows": np.array([True, False, True, True, False]),
    "mask": X > 0,
    "mask of nothing": np.zeros(5, bool),
    "tensor": tensor(np.array([1, 1, 2])),
    "tensor in a tuple": (slice(None), tensor(np.array([3, 3]))),
}


@pytest.mark.parametrize("key", KEYS)
def test_values_and_gradients(key):
    gradcheck(lambda x: index(x, KEYS[key]), [X.copy()])
    plain = KEYS[key]
    if "tensor" not in key:
        np.testing.assert_array_equal(tensor(X)[plain].data, X[plain])


def test_strided_and_flat():
    gradcheck(lambda x: x[np.array([1, 1, 0])], [X[::2, :, ::-1]])
    gradcheck(lambda x: x[np.array([1, 1, 0, -1])], [X[:, 0, 0].copy()])
    gradcheck(lambda x: x[()], [np.array(3.0)])


@pytest.mark.parametrize("shape", [(50,), (50, 8)])
def test_repeated_rows_equal_add_at(shape):
    rows = rng.integers(-50, 50, 400)
    values = rng.standard_normal((400, *shape[1:]))
    ours, theirs = np.zeros(shape), np.zeros(shape)
    add_at(ours, rows, values)
    np.add.at(theirs, rows, values)
    np.testing.assert_allclose(ours, theirs, atol=1e-12)


def test_iteration_ends():
    assert [row.shape for row in tensor(X)] == [(4, 3)] * 5


@pytest.mark.parametrize(
    ("key", "words"),
    [
        (7, r"index 7: .*\(5, 4, 3\)"),
        (np.array([9]), "out of bounds"),
        ((0, 0, 0, 0), "too many"),
        ("a", "index 'a'"),
        ((0, np.zeros((2, 3), bool)), r"index \(0, ndarray of shape \(2, 3\)\)"),
        ([0, "x"], "index"),
    ],
)
def test_bad_input(key, words):
    with pytest.raises(ArgumentError, match=words) as caught:
        tensor(X)[key]
    assert isinstance(caught.value, IndexError)
