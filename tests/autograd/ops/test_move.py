import numpy as np
import pytest

from psframework.autograd import no_grad, tensor
from psframework.autograd.ops import move
from psframework.errors import ArgumentError

rng = np.random.default_rng(6)
X, SQUARE, ROW = rng.standard_normal((2, 3, 4)), rng.standard_normal((3, 3)), rng.standard_normal(4)
CALLS = {
    "roll": (X, (2,)),
    "roll beyond": (X, (-7, 2)),
    "roll one shift for two axes": (X, (1, (0, 2))),
    "flip": (X, ()),
    "flip axes": (X, ((0, -1),)),
    "fliplr": (X, ()),
    "flipud": (ROW, ()),
    "rot90": (X, ()),
    "rot90 twice": (SQUARE, (2,)),
    "rot90 five times": (SQUARE, (5,)),
    "rot90 other axes": (X, (-1, (2, 0))),
    "repeat": (X, (2,)),
    "repeat axis": (X, (3, -1)),
    "repeat counts": (X, (np.array([0, 2, 1]), 1)),
    "repeat one count": (X, ([2], 1)),
    "repeat number": (np.array(1.5), (3,)),
    "tile": (X, (2,)),
    "tile more": (ROW, ((3, 1, 2),)),
    "tile none": (X, ((0, 1, 1),)),
    "tril": (X, (1,)),
    "triu": (SQUARE, (-1,)),
    "diagonal": (X, ()),
    "diagonal axes": (X, (1, 2, 0)),
    "diagonal negative axes": (X, (-1, -2, -1)),
    "diagonal beyond": (SQUARE, (4,)),
    "diag": (ROW, (-2,)),
    "diag of a matrix": (SQUARE, (1,)),
    "trace": (SQUARE, ()),
    "trace axes": (X, (1, 0, 2)),
}


@pytest.mark.parametrize("case", CALLS)
def test_as_numpy(case):
    array, args = CALLS[case]
    name = case.split()[0]
    found, expected = getattr(move, name)(array, *args), getattr(np, name)(array, *args)
    assert found.shape == expected.shape
    np.testing.assert_allclose(found.data, expected, atol=1e-15)


def test_counts_may_be_a_tensor():
    np.testing.assert_array_equal(move.repeat(ROW, tensor([2, 0, 0, 1])).data, [ROW[0], ROW[0], ROW[3]])


def test_flips_and_turns_are_views():
    t = tensor(X)
    views = [move.flip(t), move.rot90(t), move.fliplr(t)]
    copies = [move.roll(t, 1), move.tile(t, 1), move.tril(t)]
    with no_grad():
        t += 1
    assert [v.version for v in views] == [1, 1, 1] and [c.version for c in copies] == [0, 0, 0]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: move.roll(X, 1, 3), "roll: .*axis 3"),
        (lambda: move.roll(X, (1, 2, 3), (0, 1)), "roll: "),
        (lambda: move.flip(X, (0, 0)), "axis is named twice"),
        (lambda: move.rot90(X, 1, (0, 0)), "rot90: "),
        (lambda: move.repeat(X, [1, 2], 1), "repeat: 3 elements along axis 1 take one count or 3"),
        (lambda: move.repeat(X, -1), "repeat: "),
        (lambda: move.repeat(X, 1.5), "repeat: "),
        (lambda: move.tile(X, -1), "negative count"),
        (lambda: move.tril(ROW), "no matrices"),
        (lambda: move.diagonal(ROW), "two axes"),
        (lambda: move.diagonal(X, 0, 1, 1), "named twice"),
        (lambda: move.diag(X), "a vector or a matrix"),
    ],
)
def test_bad_input(call, words):
    with pytest.raises(ArgumentError, match=words):
        call()
