"""DistributedDataParallel, with the ranks in one process: what is averaged, what is refused, what is told."""

import asyncio
import gc
import threading
from collections.abc import Awaitable, Callable
from contextlib import nullcontext, suppress
from typing import Any
from weakref import ref

import numpy as np
import pytest

import psframework as psf
from psframework import nn
from psframework.autograd import Tensor
from psframework.backend import asnumpy, to_device
from psframework.collective.ops import ReduceOp
from psframework.ddp.distributed import DistributedDataParallel
from psframework.errors import (
    ArgumentError,
    AutogradError,
    CollectiveMismatch,
    ContextClosed,
    ModelMismatch,
    PeerLost,
)
from psframework.nn import functional as F
from psframework.testing.strict_device import strict_devices
from tests.support.ddp_ranks import Table

TINY = 1e-4  # MiB: several buckets even for small models


class Net(nn.Module):
    """Two heads over a body."""

    def __init__(self, seed: int, dtype: Any = np.float64) -> None:
        draw = np.random.default_rng(seed)
        self.body = nn.Linear(6, 8, dtype=dtype)
        self.left = nn.Linear(8, 3, dtype=dtype)
        self.right = nn.Linear(8, 3, dtype=dtype)
        for parameter in self.parameters():
            parameter.data[...] = draw.normal(size=parameter.shape)

    def forward(self, x: Any, heads: str = "both") -> Tensor:
        hidden = F.tanh(self.body(x))
        out: Any = 0
        if heads in ("both", "left"):
            out = out + self.left(hidden)
        if heads in ("both", "right"):
            out = out + self.right(hidden)
        return out  # type: ignore[no-any-return]


def batch(rank: int, step: int = 0, rows: int = 4) -> tuple[Any, Any]:
    draw = np.random.default_rng(100 * rank + step)
    return draw.normal(size=(rows, 6)), draw.integers(0, 3, rows)


def gradients(model: nn.Module) -> dict[str, Any]:
    named = model.named_parameters()
    return {name: None if each.grad is None else np.array(each.grad) for name, each in named}


def mean_gradients(models: list[Net], losses: Callable[[Net, int], Tensor]) -> dict[str, Any]:
    """What DDP should give: the mean over the ranks of the gradients of plain backwards."""
    found = []
    for rank, model in enumerate(models):
        model.zero_grad()
        losses(model, rank).backward()
        found.append(gradients(model))
    return {
        name: None if all(each[name] is None for each in found)
        else sum(np.zeros(1) if each[name] is None else each[name] for each in found) / len(found)
        for name in found[0]
    }  # fmt: skip


async def wrapped(size: int, table: Table | None = None, **options: Any) -> list[Any]:
    groups = (table or Table(size)).groups()
    ddps = [
        DistributedDataParallel(Net(rank), group, **{"bucket_cap_mb": TINY, **options})
        for rank, group in enumerate(groups)
    ]
    return list(await asyncio.gather(*ddps))


async def everywhere(ddps: list[Any], act: Callable[[Any, int], Awaitable[Any]]) -> list[Any]:
    """Does it on all ranks; errors are results."""
    acts = [act(ddp, rank) for rank, ddp in enumerate(ddps)]
    async with asyncio.timeout(20):
        return await asyncio.gather(*acts, return_exceptions=True)


def same(one: dict[str, Any], other: dict[str, Any], rtol: float = 1e-12) -> None:
    assert one.keys() == other.keys()
    for name in one:
        if one[name] is None or other[name] is None:
            assert one[name] is other[name], name
        else:
            np.testing.assert_allclose(one[name], other[name], rtol=rtol, atol=1e-14, err_msg=name)


async def test_all_ranks_start_from_rank_0_and_get_the_mean() -> None:
    ddps = await wrapped(3)
    for ddp in ddps:
        same(ddp.state_dict(), Net(0).state_dict(), rtol=0)
    for step in range(3):  # the second has other buckets than the first

        def loss_of(model: Any, rank: int, step: int = step) -> Tensor:
            x, y = batch(rank, step)
            return F.cross_entropy(model(x), y)

        async def train(ddp: Any, rank: int, loss_of: Any = loss_of) -> None:
            await ddp.backward(loss_of(ddp, rank))

        expected = mean_gradients([Net(0) for _ in ddps], loss_of)

        assert await everywhere(ddps, train) == [None] * 3
        for ddp in ddps:
            same(gradients(ddp.module), expected)
            assert all(each.grad is each.grad_buffer for each in ddp.parameters())
            ddp.zero_grad()


async def test_buckets_are_rebuilt_once_in_the_order_of_rank_0() -> None:
    table = Table(2)
    ddps = await wrapped(2, table)
    before = [bucket.names for bucket in ddps[0]._reducer.buckets]
    assert before[0] == ["right.bias", "right.weight"][: len(before[0])]

    async def train(ddp: Any, rank: int) -> None:
        # The right head comes first: its gradients are ready last. Rank 1 has another order.
        hidden = F.tanh(ddp.body(batch(rank)[0]))
        heads = [ddp.right, ddp.left] if rank == 0 else [ddp.left, ddp.right]
        outs = [head(hidden) for head in heads]
        await ddp.backward((outs[0] * outs[1]).sum())

    for _ in range(3):
        assert await everywhere(ddps, train) == [None, None]
    orders = [[name for bucket in ddp._reducer.buckets for name in bucket.names] for ddp in ddps]
    assert orders[0] == orders[1]
    assert orders[0][:2] == ["left.bias", "left.weight"]
    assert sum("int64" in each for each in table.done if each.startswith("broadcast")) == 1


async def test_bucket_operations_come_in_bucket_order_on_all_ranks() -> None:
    table = Table(2)
    ddps = await wrapped(2, table)
    table.done.clear()

    async def train(ddp: Any, rank: int) -> None:
        await ddp.backward(ddp(batch(rank)[0]).sum())

    await everywhere(ddps, train)
    lengths = [len(bucket.buffer) for bucket in ddps[0]._reducer.buckets]
    assert [each for each in table.done if "AVG" in each] == [
        f"all_reduce(float64 of shape ({length},), AVG)" for length in lengths
    ]


async def test_two_losses_of_one_graph() -> None:
    """pytorch#47260 and #106953."""
    ddps = await wrapped(2)
    expected = mean_gradients([Net(0), Net(0)], lambda net, rank: net(batch(rank)[0]).sum() * 3)

    async def train(ddp: Any, rank: int) -> None:
        out = ddp(batch(rank)[0])
        await ddp.backward(out.sum(), retain_graph=True)
        await ddp.backward(out.sum() * 2)

    assert await everywhere(ddps, train) == [None, None]
    same(gradients(ddps[0].module), expected)
    same(gradients(ddps[1].module), expected)


async def test_several_losses_at_once_and_seeds() -> None:
    ddps = await wrapped(2)
    expected = mean_gradients([Net(0), Net(0)], lambda net, rank: net(batch(rank)[0]).sum() * 5)

    async def train(ddp: Any, rank: int) -> None:
        out = ddp(batch(rank)[0])
        await ddp.backward([out.sum(), out.sum()], [np.float64(2), np.float64(3)])

    assert await everywhere(ddps, train) == [None, None]
    same(gradients(ddps[1].module), expected)


@pytest.mark.parametrize("unused", [False, True])
async def test_no_sync_adds_up_until_the_next_reduction(unused: bool) -> None:
    ddps = await wrapped(2, find_unused_parameters=unused)

    def losses(net: Any, rank: int, steps: int = 3) -> Any:
        return sum(net(batch(rank, step)[0]).sum() for step in range(steps))

    expected = mean_gradients([Net(0), Net(0)], losses)

    async def train(ddp: Any, rank: int) -> None:
        for step in range(3):
            with ddp.no_sync() if step < 2 else nullcontext():
                await ddp.backward(ddp(batch(rank, step)[0]).sum())
                if step == 1:
                    own = mean_gradients([Net(0)], lambda net, _: losses(net, rank, 2))
                    same(gradients(ddp.module), own)

    assert await everywhere(ddps, train) == [None, None]
    same(gradients(ddps[0].module), expected)
    same(gradients(ddps[1].module), expected)


async def test_a_parameter_without_gradient_is_named_on_all_ranks_and_training_goes_on() -> None:
    ddps = await wrapped(3)

    async def train(ddp: Any, rank: int, heads: str) -> None:
        await ddp.backward(ddp(batch(rank)[0], heads).sum())

    errors = await everywhere(ddps, lambda ddp, rank: train(ddp, rank, "left" if rank == 1 else "both"))
    for error in errors:
        assert isinstance(error, CollectiveMismatch)
        assert "rank 1 (trainer-1)" in str(error)
        assert "'right.weight', 'right.bias'" in str(error)
        assert "find_unused_parameters=True" in str(error)
    assert all(parameter.grad is None for ddp in ddps for parameter in ddp.parameters())
    assert await everywhere(ddps, lambda ddp, rank: train(ddp, rank, "both")) == [None] * 3
    same(
        gradients(ddps[0].module),
        mean_gradients([Net(0) for _ in ddps], lambda net, rank: net(batch(rank)[0]).sum()),
    )


@pytest.mark.parametrize("static", [False, True])
async def test_unused_parameters(static: bool) -> None:
    """Used on one rank: the mean over all. Used on none: left as it is."""
    ddps = await wrapped(2, find_unused_parameters=True, static_graph=static)

    def loss_of(model: Any, rank: int) -> Any:
        return model(batch(rank)[0], "left" if rank else "both").sum()

    async def train(ddp: Any, rank: int) -> None:
        await ddp.backward(loss_of(ddp, rank))

    expected = mean_gradients([Net(0), Net(0)], loss_of)
    for _ in range(3):
        assert await everywhere(ddps, train) == [None, None]
        for ddp in ddps:
            same(gradients(ddp.module), expected)
            ddp.zero_grad()


async def test_parameters_that_nobody_uses_keep_their_gradient() -> None:
    ddps = await wrapped(2, find_unused_parameters=True)

    async def train(ddp: Any, rank: int) -> None:
        await ddp.backward(ddp(batch(rank)[0], "left").sum())

    assert await everywhere(ddps, train) == [None, None]
    assert all(ddp.right.weight.grad is None and ddp.left.weight.grad is not None for ddp in ddps)
    own = np.full((3, 8), 7.0)
    for ddp in ddps:
        ddp.right.weight.grad = own
    assert await everywhere(ddps, train) == [None, None]
    assert all(ddp.right.weight.grad is own for ddp in ddps)


async def test_used_in_no_sync_counts_as_used() -> None:
    ddps = await wrapped(2, find_unused_parameters=True)

    async def train(ddp: Any, rank: int) -> None:
        with ddp.no_sync():
            await ddp.backward(ddp(batch(rank)[0], "right" if rank else "left").sum())
        await ddp.backward(ddp(batch(rank)[0], "left").sum())

    assert await everywhere(ddps, train) == [None, None]
    for ddp in ddps:
        np.testing.assert_allclose(ddp.right.bias.grad, np.full(3, 2.0))  # (0 + 4 rows) / 2


async def test_a_static_graph_that_changes_is_an_error_on_all_ranks() -> None:
    table = Table(2)
    ddps = await wrapped(2, table, find_unused_parameters=True, static_graph=True)

    async def train(ddp: Any, rank: int, heads: str) -> None:
        await ddp.backward(ddp(batch(rank)[0], heads).sum())

    for _ in range(2):
        assert await everywhere(ddps, lambda ddp, rank: train(ddp, rank, "left")) == [None, None]
    assert sum("MAX" in each for each in table.done) == 1
    errors = await everywhere(ddps, lambda ddp, rank: train(ddp, rank, "both" if rank else "left"))
    assert all(isinstance(each, CollectiveMismatch) and "static_graph" in str(each) for each in errors)
    assert all("'right.weight'" in str(each) for each in errors)
    assert await everywhere(ddps, lambda ddp, rank: train(ddp, rank, "left")) == [None, None]


async def test_an_error_in_the_backward_of_one_rank_reaches_all() -> None:
    """chainermn#236."""
    ddps = await wrapped(2)

    def broken(gradient: Any) -> Any:
        raise ValueError("no luck")

    async def train(ddp: Any, rank: int, breaks: bool) -> None:
        hidden = F.tanh(ddp.body(batch(rank)[0]))
        if breaks and rank == 1:
            hidden.register_hook(broken)  # after the first buckets have left
        await ddp.backward((ddp.left(hidden) + ddp.right(hidden)).sum())

    errors = await everywhere(ddps, lambda ddp, rank: train(ddp, rank, True))
    assert isinstance(errors[0], CollectiveMismatch) and "ValueError: no luck" in str(errors[0])
    assert isinstance(errors[1], ValueError)
    assert all(each.grad is None for ddp in ddps for each in ddp.parameters())
    for _ in range(2):
        assert await everywhere(ddps, lambda ddp, rank: train(ddp, rank, False)) == [None, None]
    same(gradients(ddps[0].module), gradients(ddps[1].module), rtol=0)


async def test_a_loss_that_cannot_be_differentiated_reaches_all() -> None:
    ddps = await wrapped(2)

    async def train(ddp: Any, rank: int) -> None:
        loss = ddp(batch(rank)[0]).sum()
        await ddp.backward(loss if rank else loss.detach())

    errors = await everywhere(ddps, train)
    assert isinstance(errors[0], AutogradError)
    assert isinstance(errors[1], CollectiveMismatch) and "does not require grad" in str(errors[1])


async def test_forward_and_backward_before_it_was_awaited() -> None:
    ddp = DistributedDataParallel(Net(0), Table(1).groups()[0])
    x, _ = batch(0)
    with pytest.raises(ArgumentError, match="was not awaited"):
        ddp(x)
    with pytest.raises(ArgumentError, match=r"await psf\.DistributedDataParallel"):
        await ddp.backward(Net(0)(x).sum())
    assert (await ddp) is ddp and (await ddp) is ddp
    await ddp.backward(ddp(x).sum())
    await ddp.close()
    with pytest.raises(ContextClosed):
        ddp(x)
    with pytest.raises(ContextClosed):
        await ddp


async def test_different_models_are_named_on_all_ranks() -> None:
    """pytorch#68803: one more parameter on rank 1."""
    table = Table(2)
    groups = table.groups()
    models: list[Any] = [Net(0), Net(1)]
    models[1].extra = nn.Linear(2, 2)
    ddps: list[Any] = [DistributedDataParallel(model, group) for model, group in zip(models, groups)]
    errors = await asyncio.gather(*ddps, return_exceptions=True)
    for error in errors:
        assert isinstance(error, ModelMismatch)
        assert "rank 1 (trainer-1) has parameter 'extra.weight', float32 (2, 2), which rank 0" in str(error)
    del models[1].extra
    ddps = [DistributedDataParallel(model, group) for model, group in zip(models, groups)]
    await asyncio.gather(*ddps)  # the group lives on


async def test_what_can_be_wrapped_on_some_ranks_only_is_an_error_on_all() -> None:
    groups = Table(2).groups()
    models = [Net(0), Net(1), Net(2).requires_grad_(False)]
    frozen: list[Any] = [
        DistributedDataParallel(models[each], groups[rank]) for rank, each in enumerate((0, 2))
    ]
    errors = await everywhere(frozen, lambda ddp, rank: ddp._open())
    assert all(isinstance(error, ModelMismatch) and "frozen on rank 1" in str(error) for error in errors)
    first: list[Any] = [DistributedDataParallel(models[rank], groups[rank]) for rank in range(2)]
    await asyncio.gather(*first)
    await first[1].close()
    again: list[Any] = [DistributedDataParallel(models[rank], groups[rank]) for rank in range(2)]
    errors = await everywhere(again, lambda ddp, rank: ddp._open())
    assert isinstance(errors[0], ArgumentError)
    assert isinstance(errors[1], CollectiveMismatch) and "wrapped by another" in str(errors[1])
    alike: list[Any] = [DistributedDataParallel(Net(0).requires_grad_(False), group) for group in groups]
    errors = await everywhere(alike, lambda ddp, rank: ddp._open())
    assert all(isinstance(error, ArgumentError) and "requires grad" in str(error) for error in errors)


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("unused", [True, False])
async def test_join(size: int, whole: bool, unused: bool) -> None:
    """Rank r has 10 + r batches; afterwards all have the same model, that of the last to end."""
    ddps = await wrapped(size, find_unused_parameters=unused)
    optimizers = [psf.optim.SGD(ddp.parameters(), lr=0.1) for ddp in ddps]

    async def train(ddp: Any, rank: int) -> int:
        steps = 0
        async with ddp.join(divide_by_initial_world_size=whole):
            for step in range(10 + rank):
                await ddp.backward(ddp(batch(rank, step)[0]).tanh().sum())
                optimizers[rank].step()
                ddp.zero_grad()
                steps += 1
        return steps

    assert await everywhere(ddps, train) == [10 + rank for rank in range(size)]
    one = Net(0)
    sgd = psf.optim.SGD(one.parameters(), lr=0.1)
    for step in range(9 + size):
        ranks = [rank for rank in range(size) if step < 10 + rank]
        losses = [one(batch(rank, step)[0]).tanh().sum() for rank in ranks]
        (sum(losses) / (size if whole else len(ranks))).backward()
        sgd.step()
        sgd.zero_grad()
    for ddp in ddps:
        same(ddp.state_dict(), one.state_dict(), rtol=1e-10)
        same(ddp.state_dict(), ddps[0].state_dict(), rtol=0)
        assert ddp.joining is None


async def test_join_when_rank_0_had_nothing_at_all() -> None:
    ddps = await wrapped(2)

    async def train(ddp: Any, rank: int) -> None:
        async with ddp.join():
            for step in range(3 * rank):
                await ddp.backward(ddp(batch(rank, step)[0]).sum())

    assert await everywhere(ddps, train) == [None, None]


async def test_a_static_graph_is_found_in_a_backward_that_all_ranks_take_part_in() -> None:
    """Not in one that a rank only joins, which uses nothing."""
    table = Table(2)
    ddps = await wrapped(2, table, find_unused_parameters=True, static_graph=True)

    async def train(ddp: Any, rank: int, steps: int) -> None:
        async with ddp.join():
            for step in range(steps):
                await ddp.backward(ddp(batch(rank, step)[0], "left").sum())

    assert await everywhere(ddps, lambda ddp, rank: train(ddp, rank, 2 * rank)) == [None, None]
    assert await everywhere(ddps, lambda ddp, rank: train(ddp, rank, 3)) == [None, None]
    assert sum("MAX" in each for each in table.done) == 3


async def test_an_error_in_a_join_block_reaches_the_others() -> None:
    ddps = await wrapped(2)

    async def train(ddp: Any, rank: int) -> None:
        async with ddp.join():
            for step in range(3):
                if rank == 1 and step == 2:
                    raise ValueError("out of paper")
                await ddp.backward(ddp(batch(rank, step)[0]).sum())

    errors = await everywhere(ddps, train)
    assert isinstance(errors[0], CollectiveMismatch) and "ValueError: out of paper" in str(errors[0])
    assert isinstance(errors[1], ValueError)
    assert await everywhere(ddps, lambda ddp, rank: ddp.backward(ddp(batch(rank)[0]).sum())) == [None, None]


async def test_an_error_of_a_backward_in_a_join_block_is_told_once() -> None:
    ddps = await wrapped(2)

    async def train(ddp: Any, rank: int) -> None:
        async with ddp.join():
            for step in range(3):
                heads = "left" if rank == 1 and step == 1 else "both"
                await ddp.backward(ddp(batch(rank, step)[0], heads).sum())

    errors = await everywhere(ddps, train)
    assert all(isinstance(error, CollectiveMismatch) for error in errors)
    assert await everywhere(ddps, lambda ddp, rank: ddp.backward(ddp(batch(rank)[0]).sum())) == [None, None]


async def test_buffers_become_those_of_rank_0() -> None:
    groups = Table(2).groups()
    models = [nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4)) for _ in groups]
    ddps: list[Any] = [DistributedDataParallel(model, group) for model, group in zip(models, groups)]
    await asyncio.gather(*ddps)
    seen: list[Any] = [None, None]

    async def train(ddp: Any, rank: int) -> None:
        out = ddp(batch(rank)[0].astype(np.float32))
        seen[rank] = {name: np.array(each) for name, each in ddp.named_buffers()}
        await ddp.backward((out * out * out).sum())

    assert await everywhere(ddps, train) == [None, None]
    assert not np.array_equal(seen[0]["1.running_mean"], seen[1]["1.running_mean"])
    for model in models:
        same(dict(model.named_buffers()), seen[0], rtol=0)


async def test_an_empty_batch_on_one_rank() -> None:
    """pytorch#87497."""
    ddps = await wrapped(2)
    nets = [Net(0), Net(0)]
    expected = mean_gradients(nets, lambda net, rank: net(batch(rank, rows=4 * rank)[0]).sum())

    async def train(ddp: Any, rank: int) -> None:
        await ddp.backward(ddp(batch(rank, rows=4 * rank)[0]).sum())

    for _ in range(2):
        for ddp in ddps:
            ddp.zero_grad()
        assert await everywhere(ddps, train) == [None, None]
        same(gradients(ddps[0].module), expected)


async def test_mixed_dtypes_frozen_parameters_and_inputs_that_require_grad() -> None:
    groups = Table(2).groups()
    models = [nn.Sequential(nn.Linear(6, 4), nn.Linear(4, 4), nn.Linear(4, 2)) for _ in groups]
    for model in models:
        model[0].to(np.float64)
        model[1].requires_grad_(False)
    ddps: list[Any] = [DistributedDataParallel(model, group) for model, group in zip(models, groups)]
    await asyncio.gather(*ddps)
    assert len(ddps[0]._reducer.buckets) == 2
    inputs = [psf.tensor(batch(rank)[0], requires_grad=True) for rank in range(2)]

    async def train(ddp: Any, rank: int) -> None:
        await ddp.backward(ddp(inputs[rank]).sum())

    assert await everywhere(ddps, train) == [None, None]
    assert all(each.grad is not None for each in inputs)
    for name, parameter in models[0].named_parameters():
        other = models[1].get_parameter(name)
        if name.startswith("1."):
            assert parameter.grad is None and parameter.grad_buffer is None
        else:
            assert parameter.grad.dtype == parameter.dtype
            np.testing.assert_array_equal(parameter.grad, other.grad)
    models[0][1].requires_grad_(True)
    errors = await everywhere(ddps, train)
    assert all(
        isinstance(each, CollectiveMismatch) and "wrap the model again" in str(each) for each in errors
    )


async def test_a_hook_takes_the_place_of_the_average() -> None:
    order: list[list[int]] = [[], []]

    def hook_of(rank: int) -> Any:
        async def hook(bucket: Any) -> None:
            order[rank].append(bucket.index)
            await bucket.group.all_reduce(bucket.buffer, ReduceOp.SUM)
            bucket.buffer *= 10

        return hook

    groups = Table(2).groups()
    ddps: list[Any] = [
        DistributedDataParallel(Net(0), group, TINY, hook_of(rank)) for rank, group in enumerate(groups)
    ]
    await asyncio.gather(*ddps)
    expected = mean_gradients([Net(0), Net(0)], lambda net, rank: net(batch(rank)[0]).sum() * 20)
    count = len(ddps[0]._reducer.buckets)
    assert count > 1

    async def train(ddp: Any, rank: int) -> None:
        await ddp.backward(ddp(batch(rank)[0]).sum())

    assert await everywhere(ddps, train) == [None, None]
    same(gradients(ddps[0].module), expected)
    same(gradients(ddps[1].module), expected)
    assert order == [list(range(count))] * 2


@pytest.mark.parametrize("second", ["hooked", "plain"])
async def test_backwards_of_two_wrappers_at_once_keep_their_order(second: str) -> None:
    """A hook that is slow on one rank must not let the other model's collectives go before its own there."""
    others, begun = [asyncio.Event(), asyncio.Event()], threading.Event()

    def slow_on(rank: int) -> Any:
        async def hook(bucket: Any) -> None:
            if rank == 0 and bucket.index == 0:
                with suppress(TimeoutError):
                    await asyncio.wait_for(others[rank].wait(), 0.1)
            future = bucket.group.all_reduce(bucket.buffer, ReduceOp.AVG)
            if rank == 1:
                begun.set()
            await future

        return hook

    def noting(rank: int) -> Any:
        async def hook(bucket: Any) -> None:
            others[rank].set()
            await bucket.group.all_reduce(bucket.buffer, ReduceOp.AVG)

        return hook

    groups = Table(2).groups()
    slow: list[Any] = [DistributedDataParallel(Net(0), group, TINY, slow_on(group.rank)) for group in groups]
    await asyncio.gather(*slow)
    hooks = [noting(rank) if second == "hooked" else None for rank in range(2)]
    quick: list[Any] = [
        DistributedDataParallel(Net(1), group, TINY, hook) for group, hook in zip(groups, hooks)
    ]
    await asyncio.gather(*quick)

    async def train(rank: int) -> None:
        x = batch(rank)[0]
        losses = [wrappers[rank](x).sum() for wrappers in (slow, quick)]
        if rank == 1:
            losses[1].register_hook(lambda gradient: begun.wait(20) and None)
        both = zip((slow, quick), losses)
        await asyncio.gather(*(wrappers[rank].backward(loss) for wrappers, loss in both))

    async with asyncio.timeout(20):
        await asyncio.gather(train(0), train(1))
    for number, wrappers in enumerate((slow, quick)):
        nets = [Net(number), Net(number)]
        expected = mean_gradients(nets, lambda net, rank: net(batch(rank)[0]).sum())
        for ddp in wrappers:
            same(gradients(ddp.module), expected)


async def test_an_error_in_a_hook_on_one_rank_reaches_all() -> None:
    def hook_of(rank: int) -> Any:
        async def hook(bucket: Any) -> None:
            if rank == 1 and bucket.index == 1 and fails:
                raise ValueError("hook")
            await bucket.group.all_reduce(bucket.buffer)

        return hook

    fails = [1]
    ddps: list[Any] = [
        DistributedDataParallel(Net(0), group, TINY, hook_of(rank))
        for rank, group in enumerate(Table(2).groups())
    ]
    await asyncio.gather(*ddps)

    async def train(ddp: Any, rank: int) -> None:
        await ddp.backward(ddp(batch(rank)[0]).sum())

    errors = await everywhere(ddps, train)
    assert isinstance(errors[0], CollectiveMismatch) and "ValueError: hook" in str(errors[0])
    assert isinstance(errors[1], ValueError)
    fails.clear()
    assert await everywhere(ddps, train) == [None, None]


async def test_a_hook_that_fails_after_its_last_collective_fails_on_all_in_that_step() -> None:
    fails: list[int] = []

    def hook_of(rank: int) -> Any:
        async def hook(bucket: Any) -> None:
            await bucket.group.all_reduce(bucket.buffer)
            if rank in fails and bucket.index == len(ddps[rank]._reducer.buckets) - 1:
                raise ValueError("late")

        return hook

    groups = Table(2).groups()
    ddps: list[Any] = [DistributedDataParallel(Net(0), group, TINY, hook_of(group.rank)) for group in groups]
    await asyncio.gather(*ddps)

    async def train(ddp: Any, rank: int) -> None:
        await ddp.backward(ddp(batch(rank)[0]).sum())

    assert await everywhere(ddps, train) == [None, None]  # after which nothing follows the buckets
    fails.append(1)
    errors = await everywhere(ddps, train)
    assert isinstance(errors[0], CollectiveMismatch) and "ValueError: late" in str(errors[0])
    assert isinstance(errors[1], ValueError)
    fails.clear()
    assert await everywhere(ddps, train) == [None, None]


async def test_a_backward_that_fails_while_a_hook_is_between_two_collectives_leaves_ranks_in_step() -> None:
    first, failed, breaks = threading.Event(), asyncio.Event(), [1]
    loop = asyncio.get_running_loop()

    def hook_of(rank: int) -> Any:
        async def hook(bucket: Any) -> None:
            await bucket.group.all_reduce(bucket.buffer)
            if rank in breaks:
                first.set()
                await failed.wait()
                await asyncio.sleep(0.02)
            await bucket.group.all_reduce(bucket.buffer)

        return hook

    def broken(gradient: Any) -> Any:
        assert first.wait(10)
        loop.call_soon_threadsafe(failed.set)
        raise ValueError("no luck")

    groups = Table(2).groups()
    ddps: list[Any] = [DistributedDataParallel(Net(0), group, TINY, hook_of(group.rank)) for group in groups]
    await asyncio.gather(*ddps)

    async def train(ddp: Any, rank: int) -> None:
        hidden = F.tanh(ddp.body(batch(rank)[0]))
        if rank in breaks:
            hidden.register_hook(broken)
        await ddp.backward((ddp.left(hidden) + ddp.right(hidden)).sum())

    errors = await everywhere(ddps, train)
    assert isinstance(errors[0], CollectiveMismatch) and "ValueError: no luck" in str(errors[0])
    assert isinstance(errors[1], ValueError)
    breaks.clear()
    assert await everywhere(ddps, train) == [None, None]
    same(gradients(ddps[0].module), gradients(ddps[1].module), rtol=0)


@pytest.mark.parametrize("hooked", [False, True])
async def test_sparse_gradients_come_after_the_buckets(hooked: bool) -> None:
    """pytorch#30807: other rows on each rank, and none on one."""

    class Words(nn.Module):
        def __init__(self) -> None:
            draw = np.random.default_rng(0)
            self.table = nn.Embedding(50, 4, sparse=True, dtype=np.float64)
            self.dense = nn.Linear(4, 1, dtype=np.float64)
            for parameter in self.parameters():
                parameter.data[...] = draw.normal(size=parameter.shape)

        def forward(self, ids: Any) -> Tensor:
            return self.dense(self.table(ids)).sum()  # type: ignore[no-any-return]

    async def hook(bucket: Any) -> None:
        await bucket.group.all_reduce(bucket.buffer, ReduceOp.AVG)

    ids = [np.array([3, 3, 40]), np.array([], np.int64), np.array([40, 7])]
    ddps: list[Any] = [
        DistributedDataParallel(Words(), group, hook=hook if hooked else None) for group in Table(3).groups()
    ]
    await asyncio.gather(*ddps)
    models = [Words() for _ in ids]
    for model, each in zip(models, ids):
        model(each).backward()
    expected = sum(model.table.weight.grad.to_dense() for model in models) / 3
    for _ in range(2):
        results = await everywhere(ddps, lambda ddp, rank: ddp.backward(ddp(ids[rank])))
        assert results == [None] * 3
        for ddp in ddps:
            gradient = ddp.table.weight.grad
            assert isinstance(gradient, psf.SparseRows) and gradient.rows.tolist() == [3, 7, 40]
            np.testing.assert_allclose(gradient.to_dense(), expected, rtol=1e-12)
            np.testing.assert_array_equal(ddp.dense.weight.grad, ddps[0].dense.weight.grad)
        for ddp in ddps:
            ddp.zero_grad()


async def test_parameters_on_a_device() -> None:
    """Their buckets are there too; the group carries them by the host."""
    expected = mean_gradients([Net(0), Net(0)], lambda net, rank: net(batch(rank)[0]).sum())
    with strict_devices("ddp-0"):
        models = [Net(rank).to("ddp-0") for rank in range(2)]
        groups = Table(2).groups()
        ddps: list[Any] = [
            DistributedDataParallel(model, group, TINY) for model, group in zip(models, groups)
        ]
        await asyncio.gather(*ddps)

        async def train(ddp: Any, rank: int) -> None:
            await ddp.backward(ddp(to_device(batch(rank)[0], "ddp-0")).sum())

        for _ in range(2):
            assert await everywhere(ddps, train) == [None, None]
            for model in models:
                found = {name: asnumpy(each.grad) for name, each in model.named_parameters()}
                same(found, expected)
                model.zero_grad()


async def test_a_cancelled_backward_runs_to_its_end_and_the_next_one_waits_for_it() -> None:
    ddps = await wrapped(2)

    async def train(ddp: Any, rank: int) -> None:
        loss, again = ddp(batch(rank)[0]).sum(), ddp(batch(rank)[0]).sum()
        if rank == 1:
            task = asyncio.ensure_future(ddp.backward(loss))
            while ddp._step is None or not ddp._step.spent:  # noqa: ASYNC110
                await asyncio.sleep(0)
            task.cancel()
        else:
            await ddp.backward(loss)
        await ddp.backward(again)

    expected = mean_gradients([Net(0), Net(0)], lambda net, rank: net(batch(rank)[0]).sum() * 2)
    assert await everywhere(ddps, train) == [None, None]
    same(gradients(ddps[0].module), expected)
    same(gradients(ddps[1].module), expected)


@pytest.mark.parametrize("hooked", [False, True])
async def test_a_backward_that_is_cancelled_before_it_began_is_made_up_for(hooked: bool) -> None:
    """The compute thread had something else to do; other ranks wait for this one all the same."""

    async def hook(bucket: Any) -> None:
        await bucket.group.all_reduce(bucket.buffer, ReduceOp.AVG)

    ddps = await wrapped(2, hook=hook if hooked else None)
    gate = threading.Event()
    busy = asyncio.ensure_future(psf.compute(gate.wait))
    tasks = [asyncio.ensure_future(ddp.backward(ddp(batch(0)[0]).sum())) for ddp in ddps]
    while ddps[1]._step is None:  # noqa: ASYNC110
        await asyncio.sleep(0)
    tasks[1].cancel()
    await asyncio.wait(tasks[1:])
    assert tasks[1].cancelled() and not tasks[0].done()
    gate.set()
    async with asyncio.timeout(20):
        await asyncio.gather(busy, tasks[0])
        assert await everywhere(ddps, lambda ddp, rank: ddp.backward(ddp(batch(0)[0]).sum())) == [None, None]
        for ddp in ddps:
            await ddp.close()
            same(
                gradients(ddp.module),
                mean_gradients([Net(0)], lambda net, rank: net(batch(0)[0]).sum() * 2),
            )


async def test_a_backward_that_is_cancelled_while_it_waits_for_the_one_before_is_made_up_for() -> None:
    ddps = await wrapped(2)

    async def train(ddp: Any, rank: int) -> None:
        losses = [ddp(batch(rank, step)[0]).sum() for step in range(3)]
        if rank == 1:
            tasks = [asyncio.ensure_future(ddp.backward(loss)) for loss in losses[:2]]
            await asyncio.sleep(0)
            for task in tasks:
                task.cancel()
        else:
            for loss in losses[:2]:
                await ddp.backward(loss)
        await ddp.backward(losses[2])

    def all_losses(net: Any, rank: int) -> Any:
        return sum(net(batch(rank, step)[0]).sum() for step in range(3))

    assert await everywhere(ddps, train) == [None, None]
    for ddp in ddps:
        same(gradients(ddp.module), mean_gradients([Net(0), Net(0)], all_losses))


@pytest.mark.parametrize("when", ["announced", "leaving"])
async def test_cancelled_in_a_join_block_it_does_its_part_and_then_tells_the_others(when: str) -> None:
    ddps = await wrapped(2)
    steps = [4, 4 if when == "announced" else 2]
    asleep, alone = asyncio.Event(), asyncio.Event()

    async def train(ddp: Any, rank: int) -> None:
        async with ddp.join():
            for step in range(steps[rank]):
                if step == 2 and rank == 0:
                    asleep.set()
                    await alone.wait()
                await ddp.backward(ddp(batch(rank, step)[0]).sum())

    tasks = [asyncio.ensure_future(train(ddp, rank)) for rank, ddp in enumerate(ddps)]
    async with asyncio.timeout(20):
        await asleep.wait()
        while ddps[1].group._queue.sequence == ddps[0].group._queue.sequence:  # noqa: ASYNC110
            await asyncio.sleep(0)
    tasks[1].cancel()
    alone.set()
    async with asyncio.timeout(20):
        errors = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(errors[1], asyncio.CancelledError)
    if when == "announced":
        assert isinstance(errors[0], CollectiveMismatch) and "join() failed with CancelledError" in str(
            errors[0]
        )
    else:
        assert errors[0] is None
    assert await everywhere(ddps, lambda ddp, rank: ddp.backward(ddp(batch(rank)[0]).sum())) == [None, None]
    assert all(ddp.joining is None for ddp in ddps)


async def test_what_belongs_to_the_model_is_found_and_one_wrapper_is_enough() -> None:
    group = Table(1).groups()[0]
    model = Net(0)
    ddp = await DistributedDataParallel(model, group)
    assert list(ddp.state_dict()) == list(model.state_dict()) and ddp.body is model.body
    assert list(ddp.parameters()) == list(model.parameters())
    with pytest.raises(AttributeError):
        _ = ddp.nothing
    with pytest.raises(ArgumentError, match="another DistributedDataParallel"):
        await DistributedDataParallel(model, group)
    with pytest.raises(ArgumentError, match="cannot be moved"):
        model.to(np.float32)
    await ddp.backward(ddp(batch(0)[0]).sum())
    kept = gradients(model)
    await ddp.close()
    await ddp.close()
    same(gradients(model), kept, rtol=0)
    assert all(each.grad_buffer is None for each in model.parameters())
    async with DistributedDataParallel(model, group) as again:
        await again.backward(again(batch(0)[0]).sum())
    same(gradients(model), {name: 2 * each for name, each in kept.items()})


async def test_a_wrapper_that_is_gone_or_lost_its_group_makes_room() -> None:
    table = Table(2)
    first = table.groups()
    models = [Net(0), Net(0)]

    async def train(model: Any, group: Any) -> None:
        ddp = await DistributedDataParallel(model, group)
        await ddp.backward(ddp(batch(0)[0]).sum())

    await asyncio.gather(*[train(model, group) for model, group in zip(models, first)])
    ddps: list[Any] = [DistributedDataParallel(model, group) for model, group in zip(models, first)]
    await asyncio.gather(*ddps)
    table.lose(1)
    errors = await everywhere(ddps, lambda ddp, rank: ddp.backward(ddp(batch(rank)[0]).sum()))
    assert isinstance(errors[0], PeerLost)
    again = await DistributedDataParallel(models[0], Table(1).groups()[0])
    await again.backward(again(batch(0)[0]).sum())
    same(gradients(models[0]), mean_gradients([Net(0)], lambda net, _: net(batch(0)[0]).sum()))
    with pytest.raises(ContextClosed):
        ddps[0](batch(0)[0])


@pytest.mark.parametrize(
    "kind",
    [
        "plain",
        "unused",
        "failing",
        "hook",
        "failing hook",
        "join",
        "failing join",
        "cancelled hook",
        "cancelled join",
    ],
)
async def test_nothing_is_left_without_the_collector_of_cycles(kind: str) -> None:
    async def hook(bucket: Any) -> None:
        await bucket.group.all_reduce(bucket.buffer)

    async def train(ddp: Any, rank: int) -> None:
        heads = "left" if "failing" in kind and rank else "both"
        async with ddp.join() if "join" in kind else nullcontext():
            backward = ddp.backward(ddp(batch(rank)[0], heads).sum())
            if "cancelled" in kind:
                backward = asyncio.ensure_future(backward)
                await asyncio.sleep(0)
                backward.cancel()
            await backward

    gc.collect()
    gc.disable()
    try:
        ddps = await wrapped(
            2, find_unused_parameters=kind == "unused", hook=hook if "hook" in kind else None
        )
        for _ in range(3):
            await everywhere(ddps, train)
        gone = [ref(ddp) for ddp in ddps]
        gone += [ref(arena) for ddp in ddps for arena in ddp._reducer._arenas.values()]
        gone += [ref(ddp._step) for ddp in ddps]
        for ddp in ddps:
            await ddp.close()
        del ddps, ddp
        for _ in range(100):  # the compute thread may still be on its way out of the last call
            if all(each() is None for each in gone):
                break
            await asyncio.sleep(0.01)
        assert [each() for each in gone] == [None] * len(gone)
    finally:
        gc.enable()


async def test_arguments() -> None:
    (group,) = Table(1).groups()
    with pytest.raises(ArgumentError, match=r"nn\.Module"):
        DistributedDataParallel(lambda x: x, None)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="bucket_cap_mb"):
        DistributedDataParallel(Net(0), group, -1)
    with pytest.raises(ArgumentError, match=r"await cluster\.process_group\(\)` gives, not NoneType"):
        DistributedDataParallel(Net(0), None)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="hook=3"):
        DistributedDataParallel(Net(0), group, hook=3)  # type: ignore[arg-type]


async def test_timeline(tmp_path: Any) -> None:
    ddps = await wrapped(2)
    with pytest.raises(ArgumentError, match="no backward"):
        ddps[0].timeline()
    await everywhere(ddps, lambda ddp, rank: ddp.backward(ddp(batch(rank)[0]).sum()))
    drawing = ddps[0].timeline(tmp_path / "run.svg")
    assert (tmp_path / "run.svg").read_text() == drawing.svg
    assert "communication not hidden" in drawing.svg and "right.bias" in drawing.svg
