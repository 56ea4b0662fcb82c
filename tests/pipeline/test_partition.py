"""Cuts are the best there are, and stages are slices of the model under its names."""

from itertools import accumulate, combinations, pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from psframework import nn
from psframework.errors import ArgumentError
from psframework.pipeline.partition import cut, split_sequential


def sums(costs: list[int], sizes: list[int]) -> list[int]:
    return [sum(costs[a:b]) for a, b in pairwise(accumulate(sizes, initial=0))]


def every_cut(n: int, parts: int) -> list[list[int]]:
    return [
        [b - a for a, b in pairwise((0, *borders, n))] for borders in combinations(range(1, n), parts - 1)
    ]


def price(costs: list[int], sizes: list[int]) -> tuple[int, int]:
    """What is compared: the largest sum, then how uneven they are."""
    found = sums(costs, sizes)
    return max(found), sum(each**2 for each in found)


@given(costs=st.lists(st.integers(0, 50), min_size=1, max_size=9), data=st.data())
def test_no_cut_is_better(costs: list[int], data: st.DataObject) -> None:
    parts = data.draw(st.integers(1, len(costs)))
    sizes = cut(costs, parts)
    assert len(sizes) == parts and min(sizes) >= 1 and sum(sizes) == len(costs)
    assert price(costs, sizes) == min(price(costs, each) for each in every_cut(len(costs), parts))


@given(costs=st.lists(st.floats(0, 1e3), min_size=1, max_size=8), data=st.data())
def test_fractions_are_cut_as_well(costs: list[float], data: st.DataObject) -> None:
    parts = data.draw(st.integers(1, len(costs)))
    best = min(max(sums(costs, each)) for each in every_cut(len(costs), parts))  # type: ignore[arg-type]
    assert max(sums(costs, cut(costs, parts))) == pytest.approx(best)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("costs", "parts", "sizes"),
    [
        ([1, 1, 1, 1], 2, [2, 2]),
        ([9, 1, 1, 1], 2, [1, 3]),
        ([9, 1, 1, 1, 1, 1, 1], 3, [1, 3, 3]),  # [1, 1, 5] has the same largest sum
        ([1, 2, 3, 4, 5], 5, [1, 1, 1, 1, 1]),
        ([3], 1, [1]),
    ],
    ids=["alike", "one large", "even", "one each", "one"],
)
def test_cuts(costs: list[int], parts: int, sizes: list[int]) -> None:
    assert cut(costs, parts) == sizes


def test_many_layers() -> None:
    costs = np.random.default_rng(0).uniform(0.5, 1.5, 600).tolist()
    found = sums(costs, cut(costs, 8))
    assert max(found) <= 1.02 * sum(costs) / 8


@pytest.mark.parametrize("parts", [0, 3, True, 1.0])
def test_too_few_layers(parts: Any) -> None:
    with pytest.raises(ArgumentError, match=rf"2 layers can't be cut into {parts} stages"):
        cut([1, 2], parts)


@pytest.mark.parametrize("cost", [-1.0, float("nan"), float("inf")])
def test_costs_are_checked(cost: float) -> None:
    with pytest.raises(ArgumentError, match="costs must be numbers of at least 0"):
        cut([1.0, cost], 1)


def model() -> nn.Sequential:
    inner = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    return nn.Sequential(nn.Linear(3, 4), inner, nn.BatchNorm1d(4), nn.Linear(4, 2))


def test_stages_share_the_layers_under_their_names() -> None:
    whole = model()
    stages = split_sequential(whole, [1, 1, 2])
    assert [name for stage in stages for name in stage.state_dict()] == list(whole.state_dict())
    assert list(stages[1].state_dict()) == ["1.0.weight", "1.0.bias"]
    assert stages[2][0] is whole[2]
    x = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    result = whole.eval()(x)
    for stage in stages:
        x = stage(x)
    np.testing.assert_array_equal(x.data, result.data)  # type: ignore[attr-defined]


def test_stages_have_the_models_mode() -> None:
    assert [stage.training for stage in split_sequential(model().eval(), [2, 2])] == [False, False]
    assert [stage.training for stage in split_sequential(model(), [2, 2])] == [True, True]


@pytest.mark.parametrize("sizes", [[], [2, 1], [4, 0], [5, -1], [2, 3]])
def test_sizes_are_those_of_the_layers(sizes: list[int]) -> None:
    with pytest.raises(ArgumentError, match=r"are not the model's 4: give each stage at least one layer"):
        split_sequential(model(), sizes)


class Residual(nn.Sequential):
    """Not what its layers do one after the other."""

    def forward(self, x: Any) -> Any:
        """Adds the input."""
        return x + super().forward(x)


@pytest.mark.parametrize("made", [nn.Linear(2, 2), Residual(nn.Linear(2, 2))], ids=["Linear", "Residual"])
def test_what_is_no_sequence_is_refused(made: Any) -> None:
    with pytest.raises(ArgumentError, match=rf"{type(made).__name__} has a forward of its own: list the"):
        split_sequential(made, [1])
