"""A wrapped model that is trained without `ddp.backward` says so, once; nothing else does."""

import warnings

import pytest

import psframework as psf
from psframework import nn, optim
from psframework.ddp.distributed import DistributedDataParallel
from tests.support.ddp_ranks import Table

X = [[1.0, 2.0, 3.0]]


@pytest.fixture
async def ddp() -> DistributedDataParallel:
    (group,) = Table(1).groups()
    return await DistributedDataParallel(nn.Linear(3, 2), group)


async def test_a_step_after_loss_backward_is_noticed_at_the_next_forward(
    ddp: DistributedDataParallel,
) -> None:
    optimizer = optim.SGD(ddp.parameters(), lr=0.1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ddp(psf.tensor(X)).sum().backward()
        optimizer.step()
    with pytest.warns(UserWarning, match=r"await ddp\.backward\(loss\)") as said:
        ddp(psf.tensor(X)).sum().backward()
    assert said[0].filename == __file__
    optimizer.step()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ddp(psf.tensor(X))


async def test_parameters_in_new_memory_are_noticed_too(ddp: DistributedDataParallel) -> None:
    ddp(psf.tensor(X)).sum().backward()
    for parameter in ddp.parameters():
        parameter._version = [0]  # as an optimizer does that puts a new array in place
    with pytest.warns(UserWarning, match="averages nothing"):
        ddp(psf.tensor(X))


async def test_loading_a_state_after_a_forward_that_was_only_looked_at_is_silent(
    ddp: DistributedDataParallel,
) -> None:
    optimizer = optim.SGD(ddp.parameters(), lr=0.1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(2):
            await ddp.backward(ddp(psf.tensor(X)).sum())
            optimizer.step()
            ddp(psf.tensor(X))  # nobody said that no gradient was wanted
            ddp.load_state_dict(
                {"weight": psf.tensor([[1.0] * 3] * 2).numpy(), "bias": psf.tensor([1.0] * 2).numpy()}
            )
            ddp(psf.tensor(X))


async def test_what_is_right_is_silent(ddp: DistributedDataParallel) -> None:
    optimizer = optim.SGD(ddp.parameters(), lr=0.1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(3):
            with psf.no_grad():
                ddp(psf.tensor(X))
            ddp(psf.tensor(X))  # of which nobody wants a gradient
            with ddp.no_sync():
                await ddp.backward(ddp(psf.tensor(X)).sum())
            await ddp.backward(ddp(psf.tensor(X)).sum())
            optimizer.step()
            optimizer.zero_grad()
