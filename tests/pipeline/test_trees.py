"""Trees of arrays."""

from collections import namedtuple

import numpy as np

import psframework as psf
from psframework import nn
from psframework.pipeline.trees import arrays_of, called, leaves, mapped

Pair = namedtuple("Pair", "left right")
TREE = {"a": (1, [2, None]), "b": Pair(3, 4)}


def test_mapped_keeps_the_structure() -> None:
    found = mapped(lambda leaf: leaf and leaf * 2, TREE)
    assert found == {"a": (2, [4, None]), "b": Pair(6, 8)}
    assert isinstance(found["b"], Pair)


def test_leaves_are_in_order() -> None:
    assert list(leaves(TREE)) == [1, 2, None, 3, 4]
    assert list(leaves(5)) == [5]


def test_tensors_become_arrays() -> None:
    tensor = psf.tensor(np.ones(2))
    found = arrays_of({"x": [tensor, 3]})
    assert found["x"][0] is tensor.data
    assert found["x"][1] == 3


def test_what_a_stage_is_called_with() -> None:
    def function(*args: int, **named: int) -> tuple[tuple[int, ...], dict[str, int]]:
        return args, named

    assert called(function, (1, 2)) == ((1, 2), {})
    assert called(function, {"x": 1}) == ((), {"x": 1})
    assert called(function, [1, 2]) == (([1, 2],), {})
    assert called(function, None) == ((None,), {})


def test_a_sequential_takes_one_thing() -> None:
    class Pairs(nn.Sequential):
        def forward(self, first: int, second: int) -> int:
            return first + second

    assert called(nn.Sequential(nn.Identity()), (1, 2)) == (1, 2)
    assert called(nn.Sequential(nn.Identity()), {"x": 1}) == {"x": 1}
    assert called(Pairs(), (1, 2)) == 3
