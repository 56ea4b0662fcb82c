"""What ranks compare before they train together."""

import asyncio

import numpy as np
import pytest

from psframework import nn
from psframework.ddp.agree import agree, compare, describe, spread
from psframework.errors import ModelMismatch
from tests.support.ddp_ranks import Table

NAMES = ("one", "two", "three")


def model(**changes: object) -> nn.Module:
    made = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    for name, part in changes.items():
        setattr(made, name, part)
    return made


def test_equal_models_agree() -> None:
    assert compare([describe(model(), {"cap": 1})] * 3, NAMES) == ""


@pytest.mark.parametrize(
    ("other", "text"),
    [
        (model(more=nn.Linear(1, 2)), "rank 2 (three) has parameter 'more.weight', float32 (2, 1), which"),
        (nn.Sequential(nn.Linear(3, 4)), "rank 2 (three) has no parameter '1.weight', which rank 0 (one)"),
        (model().double(), "'0.weight' is float64 (4, 3) on rank 2 (three), and float32 (4, 3) on rank 0"),
        (model().requires_grad_(False), "'0.weight' is float32 (4, 3), which is frozen on rank 2"),
    ],
)  # fmt: skip
def test_a_difference_names_rank_and_parameter(other: nn.Module, text: str) -> None:
    assert text in compare([describe(each, {}) for each in (model(), model(), other)], NAMES)


def test_other_options_and_another_order_differ() -> None:
    assert "option cap is 2 on rank 1 (two), and 1 on" in compare(
        [describe(model(), {"cap": i}) for i in (1, 2)], NAMES
    )
    lines = describe(model(), {})
    turned = dict(reversed(list(lines.items())))
    assert "rank 1 (two) registered buffer '1.num_batches_tracked' where rank 0 (one)" in compare(
        [lines, turned], NAMES
    )


def test_a_long_list_is_cut() -> None:
    first = describe(nn.Sequential(*[nn.Linear(1, 1) for _ in range(9)]), {})
    assert compare([first, {}], NAMES).endswith("; and 14 more")


async def test_all_ranks_get_the_error_and_the_group_lives_on() -> None:
    groups = Table(3).groups()
    models = [model(), model(), model(more=nn.Linear(1, 1))]
    errors = await asyncio.gather(
        *[agree(group, each, {}) for group, each in zip(groups, models)], return_exceptions=True
    )
    assert [type(error) for error in errors] == [ModelMismatch] * 3
    assert len({str(error) for error in errors}) == 1
    await asyncio.gather(*[agree(group, model(), {}) for group in groups])


async def test_parameters_and_buffers_are_spread_in_place() -> None:
    groups = Table(2).groups()
    models = [model(), model()]
    for rank, each in enumerate(models):
        each.get_buffer("1.running_mean")[...] = rank + 5
    arrays = [parameter.data for parameter in models[0].parameters()]
    versions = [parameter.version for parameter in models[0].parameters()]
    await asyncio.gather(*[spread(group, each, 1) for group, each in zip(groups, models)])
    for name, array in models[1].state_dict().items():
        np.testing.assert_array_equal(models[0].state_dict()[name], array)
    assert all(parameter.data is array for parameter, array in zip(models[0].parameters(), arrays))
    assert all(parameter.version > old for parameter, old in zip(models[0].parameters(), versions))
