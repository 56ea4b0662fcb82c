import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from psframework.autograd import no_grad, tensor
from psframework.autograd.ops.index import add_at, index
from psframework.errors import ArgumentError, AutogradError
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


@st.composite
def keys(draw):
    """A shape, and an index for it of everything that NumPy takes."""
    shape = draw(st.lists(st.integers(1, 3), max_size=4))
    together = draw(npst.array_shapes(max_dims=2, max_side=3))  # of the index arrays, which broadcast
    items, axis = [], 0
    while axis < len(shape) and draw(st.integers(0, 4)):
        n = shape[axis]
        kind = draw(
            st.sampled_from(["slice", "slice", "int", "array", "array", "list", "mask", "new", "dots"])
        )
        width = 1
        if kind == "slice":
            items.append(draw(st.slices(n)))
        elif kind == "int":
            items.append(draw(st.integers(-n, n - 1)))
        elif kind == "array":
            lengths = [m if draw(st.booleans()) else 1 for m in together]
            items.append(draw(npst.arrays(np.int64, lengths, elements=st.integers(-n, n - 1))))
        elif kind == "list":
            items.append(draw(st.lists(st.integers(-n, n - 1), min_size=together[-1], max_size=together[-1])))
        elif kind == "mask":
            width = draw(st.integers(1, min(2, len(shape) - axis)))
            items.append(draw(npst.arrays(np.bool_, shape[axis : axis + width])))
        elif kind == "new":
            items.append(None)
            width = 0
        elif not any(item is Ellipsis for item in items):
            items.append(Ellipsis)
            width = draw(st.integers(0, len(shape) - axis))
        axis += width
    return shape, tuple(items)


@settings(max_examples=100)
@given(keys())
def test_every_index_that_numpy_takes(case):
    shape, key = case
    x = np.random.default_rng(0).standard_normal(shape)
    try:
        expected = x[key]
    except IndexError:  # masks and arrays that do not broadcast
        with pytest.raises(ArgumentError):
            index(x, key)
        return
    out = index(tensor(x, True), key)
    np.testing.assert_array_equal(out.data, expected)
    seed = np.random.default_rng(1).standard_normal(out.shape)
    wanted = np.zeros(shape)
    np.add.at(wanted, key, seed)
    (found,) = out.node.backward(seed)
    np.testing.assert_allclose(found, wanted, atol=1e-12)


def test_odd_keys():
    for key in (
        True,
        np.bool_(False),
        np.array(2),
        np.array([], bool).reshape(0, 4, 3),
        ([], slice(None), []),
    ):
        x = X[:0] if getattr(key, "ndim", 0) == 3 else X
        gradcheck(lambda t, key=key: index(t, key), [x.copy()])


def test_an_index_tensor_that_changes_is_noticed():
    x, rows = tensor(X, True), tensor(np.array([0, 1]))
    out = x[rows]
    with no_grad():
        rows += 1
    with pytest.raises(AutogradError, match="'index'"):
        out.sum().backward()


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
