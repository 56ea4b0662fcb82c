import numpy as np
import pytest

from psframework.autograd.ops.contract import _plan, contract, diagonal_view

rng = np.random.default_rng(9)
SIZES = {"a": 2, "b": 3, "c": 4, "d": 1, "e": 5, "z": 0}


@pytest.mark.parametrize(
    ("labels", "output"),
    [
        (["ab"], "ba"), (["abc"], "b"), (["ab", "bc"], "ac"), (["ab", "bc"], "cba"), (["ab", "c"], ""),
        (["abc", "cab"], ""), (["dab", "dbc"], "bca"), (["az", "zb"], "ab"), (["az", "zb"], "z"),
        (["ab", "bc", "ce", "ea"], "b"), (["a", "b", "c"], "cab"), (["", "ab"], "a"),
        (["abc", "b", "ac"], "abc"),
    ],
)  # fmt: skip
def test_as_numpy(labels, output):
    arrays = [rng.standard_normal([SIZES[letter] for letter in term]) for term in labels]
    arrays = [np.asarray(array) for array in arrays]
    found = contract(arrays, labels, output)
    expected = np.einsum(f"{','.join(labels)}->{output}", *arrays)
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, atol=1e-12)


def test_the_cheap_pair_comes_first():
    # The product of two large matrices is to be avoided: the vector goes first.
    steps, _ = _plan(("ij", "jk", "k"), "i", ((1000, 1000), (1000, 1000), (1000,)))
    assert [(step.first, step.second) for step in steps] == [(1, 2), (0, 1)]


def test_the_diagonal_is_a_view():
    array = rng.standard_normal((3, 4, 3))
    view, letters = diagonal_view(array, "aba")
    assert letters == "ab" and np.shares_memory(view, array)
    np.testing.assert_array_equal(view, array.diagonal(0, 0, 2).T)
    same, letters = diagonal_view(array, "abc")
    assert same is array and letters == "abc"
