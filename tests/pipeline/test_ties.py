"""Parameters of several stages are found by identity."""

import numpy as np
import pytest

from psframework import nn
from psframework.errors import ArgumentError
from psframework.pipeline.ties import first_values, tied_parameters


def test_an_embedding_and_the_output_head() -> None:
    embedding, head = nn.Embedding(5, 3), nn.Linear(3, 5, bias=False)
    head.weight = embedding.weight
    stages = [nn.Sequential(embedding), nn.Linear(3, 3), nn.Sequential(nn.ReLU(), head)]
    assert tied_parameters(stages) == [[(0, "0.weight"), (2, "1.weight")]]


def test_a_layer_in_three_stages_ties_each_of_its_parameters() -> None:
    layer = nn.Linear(2, 2)
    stages = [nn.Sequential(layer), nn.Sequential(nn.ReLU(), layer), nn.Sequential(layer, layer)]
    assert tied_parameters(stages) == [
        [(0, "0.weight"), (1, "1.weight"), (2, "0.weight")],
        [(0, "0.bias"), (1, "1.bias"), (2, "0.bias")],
    ]


def test_equal_values_are_no_tie() -> None:
    stages = [nn.Linear(2, 2), nn.Linear(2, 2)]
    stages[1].load_state_dict(stages[0].state_dict())
    assert np.array_equal(stages[0].weight.data, stages[1].weight.data)
    assert tied_parameters(stages) == []


def test_a_tie_inside_of_one_stage_is_that_stages_own() -> None:
    layer = nn.Linear(2, 2)
    assert tied_parameters([nn.Sequential(layer, layer), nn.Linear(2, 2)]) == []
    assert tied_parameters([]) == []


def test_copies_begin_with_the_values_of_the_first() -> None:
    first, other = np.ones((2, 3)), np.zeros((2, 3))
    ties = [[(0, "a"), (2, "b"), (3, "c")]]
    found = first_values(ties, {(0, "a"): first, (2, "b"): other, (3, "c"): other})
    assert found == {(2, "b"): first, (3, "c"): first}


@pytest.mark.parametrize("other", [np.ones((3, 2)), np.ones((2, 3), np.float32)])
def test_copies_that_differ_are_named(other: np.ndarray) -> None:
    with pytest.raises(ArgumentError, match=r"a of stage 0 has shape \(2, 3\) .*float64, b of stage 2"):
        first_values([[(0, "a"), (2, "b")]], {(0, "a"): np.ones((2, 3)), (2, "b"): other})
