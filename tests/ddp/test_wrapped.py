"""A model has one wrapper at a time."""

from typing import Any

import numpy as np
import pytest

from psframework import nn
from psframework.ddp.distributed import DistributedDataParallel
from psframework.ddp.reducer import Reducer
from psframework.ddp.wrapped import give_back, take_over
from psframework.errors import ArgumentError, PeerLost
from tests.support.ddp_ranks import Table


@pytest.fixture
async def model() -> nn.Linear:
    return nn.Linear(3, 2)


def wrapper(model: nn.Module) -> tuple[DistributedDataParallel, Reducer]:
    (group,) = Table(1).groups()
    ddp = DistributedDataParallel(model, group)
    return ddp, ddp._reducer


async def test_a_second_wrapper_is_refused_until_the_first_is_closed_or_gone(model: nn.Linear) -> None:
    first: Any = wrapper(model)
    take_over(*first)
    second = wrapper(model)
    with pytest.raises(ArgumentError, match=r"await its close\(\) first"):
        take_over(*second)
    first[0].closed = True
    take_over(*second)
    give_back(model)
    take_over(*wrapper(model))


async def test_a_wrapper_whose_group_is_lost_is_closed(model: nn.Linear) -> None:
    first, second = wrapper(model), wrapper(model)
    take_over(*first)
    first[0].group.abort(PeerLost("gone", peer="trainer-0"))
    take_over(*second)
    assert first[0].closed and not second[0].closed


async def test_gradients_that_live_elsewhere_are_not_taken(model: nn.Linear) -> None:
    model.bias.grad_buffer = np.zeros(2, np.float32)  # type: ignore[union-attr]
    with pytest.raises(ArgumentError, match=r"'bias' lives in a buffer of somebody else"):
        take_over(*wrapper(model))
