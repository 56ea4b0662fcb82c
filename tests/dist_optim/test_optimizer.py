"""Against one process, on real processes: steps, clipping, many contexts at once, dead owners, state."""

import asyncio
import gc
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest
from crew import until
from dist_models import (
    Frozen,
    Part,
    Rows,
    computed,
    constant,
    let_it_come,
    nothing,
    part_that_comes_late,
    part_that_fails,
    weight_of,
)

import psframework as psf
import psframework.nn.functional as F
from psframework import nn, optim
from psframework.dist_autograd.handle import DistContext

SIZES = [(5, 8), (8, 7), (7, 3)]
KINDS: dict[str, Callable[..., optim.Optimizer]] = {
    "sgd": lambda *a: optim.SGD(*a, lr=0.1),
    "momentum": lambda *a: optim.SGD(*a, lr=0.1, momentum=0.9, weight_decay=0.01),
    "adam": lambda *a: optim.Adam(*a, lr=0.01),
    "adagrad": lambda *a: optim.Adagrad(*a, lr=0.1),
    "schedule": lambda *a: optim.SGD(*a, lr=optim.schedule.Cosine(0.5, steps=4)),
}


@pytest.fixture(scope="module")
async def local() -> AsyncIterator[psf.LocalCluster]:
    async with psf.local_cluster(workers=3, imports=["dist_models"]) as made:
        yield made


@pytest.fixture(scope="module")
async def cluster(local: psf.LocalCluster) -> AsyncIterator[psf.Cluster]:
    async with psf.connect(local.address, name="me") as made:
        yield made


class Spread:
    """A model of three parts, each in this process or another one."""

    def __init__(self, cluster: psf.Cluster, homes: tuple[str, ...] = ("worker-0", "", "worker-1")) -> None:
        self.parts: list[Any] = [
            cluster.remote(home, Part, (seed, *size)) if home else Part(seed, *size)
            for seed, (home, size) in enumerate(zip(homes, SIZES))
        ]

    async def loss(self, seed: int) -> psf.Tensor:
        x, y = batch(seed)
        for part in self.parts:
            x = await part.rpc_async().forward(x) if isinstance(part, psf.RRef) else part(x)
        return F.mse_loss(x, y)

    async def values(self) -> list[np.ndarray]:
        states = [
            await part.rpc_async().state_dict() if isinstance(part, psf.RRef) else part.state_dict()
            for part in self.parts
        ]
        return [array for state in states for array in state.values()]


class Whole:
    """The same in one process."""

    def __init__(self) -> None:
        self.model = nn.Sequential(*[Part(seed, *size) for seed, size in enumerate(SIZES)])

    def step(self, optimizer: optim.Optimizer, seed: int, max_norm: float | None = None) -> float | None:
        optimizer.zero_grad()
        x, y = batch(seed)
        F.mse_loss(self.model(x), y).backward()
        norm = None if max_norm is None else optim.clip_grad_norm_(self.model.parameters(), max_norm)
        optimizer.step()
        return norm

    def values(self) -> list[np.ndarray]:
        return list(self.model.state_dict().values())


def batch(seed: int) -> tuple[psf.Tensor, np.ndarray]:
    rng = np.random.default_rng(seed)
    return psf.tensor(rng.standard_normal((4, 5)), requires_grad=True), rng.standard_normal((4, 3))


@asynccontextmanager
async def backward(cluster: psf.Cluster, model: Spread, seed: int) -> AsyncIterator[DistContext]:
    async with cluster.dist_autograd() as ctx:
        await ctx.backward([await model.loss(seed)])
        yield ctx


async def train(
    cluster: psf.Cluster, model: Spread, optimizer: psf.DistributedOptimizer, seeds: range
) -> None:
    for seed in seeds:
        async with backward(cluster, model, seed) as ctx:
            await optimizer.step(ctx)


def assert_same(found: list[np.ndarray], expected: list[np.ndarray]) -> None:
    assert len(found) == len(expected)
    for one, other in zip(found, expected):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("kind", KINDS)
async def test_equals_the_local_optimizer_to_the_bit(cluster: psf.Cluster, kind: str) -> None:
    model, whole = Spread(cluster), Whole()
    distributed = psf.DistributedOptimizer(KINDS[kind](), model.parts)
    local = KINDS[kind](whole.model.parameters())
    assert distributed.owners == ["worker-0", "me", "worker-1"]
    for seed in range(5):
        await train(cluster, model, distributed, range(seed, seed + 1))
        whole.step(local, seed)
        assert_same(await model.values(), whole.values())
    assert all(parameter.grad is None for parameter in model.parts[1].parameters())
    state, expected = await distributed.state_dict(), local.state_dict()
    assert state["param_groups"][0]["params"] == ["0.w", "0.b", "1.w", "1.b", "2.w", "2.b"]
    assert state["param_groups"][0]["lr"] == expected["param_groups"][0]["lr"]
    for slots, mine in zip(state["state"].values(), expected["state"].values(), strict=True):
        assert slots.keys() == mine.keys()
        for name, slot in slots.items():
            np.testing.assert_array_equal(slot, mine[name])


@pytest.mark.parametrize("max_norm", [0.01, 100.0])
async def test_clipping_is_that_of_one_process(cluster: psf.Cluster, max_norm: float) -> None:
    model, whole = Spread(cluster), Whole()
    distributed = psf.DistributedOptimizer(optim.SGD(lr=1.0), model.parts)
    local = optim.SGD(whole.model.parameters(), lr=1.0)
    for seed in range(2):
        async with backward(cluster, model, seed) as ctx:
            before = {leaf: gradient.copy() for leaf, gradient in ctx.gradients().items()}
            norm = await distributed.step(ctx, max_norm=max_norm)
            for leaf, gradient in ctx.gradients().items():
                np.testing.assert_array_equal(gradient, before[leaf])
        assert norm == whole.step(local, seed, max_norm)
        assert_same(await model.values(), whole.values())


async def test_16_contexts_at_once_have_the_gradients_of_the_values_they_saw(cluster: psf.Cluster) -> None:
    """All forwards see the first values; half of the backwards come when the others have stepped."""
    model, whole = Spread(cluster), Whole()
    distributed = psf.DistributedOptimizer(optim.SGD(lr=0.1), model.parts)
    n = 16
    forwards, steps = asyncio.Barrier(n), asyncio.Barrier(n)

    async def one(seed: int) -> None:
        async with cluster.dist_autograd() as ctx:
            loss = await model.loss(seed)
            await forwards.wait()
            if seed % 2:
                await steps.wait()
            await ctx.backward([loss])
            await distributed.step(ctx)
            if not seed % 2:
                await steps.wait()

    await asyncio.gather(*(one(seed) for seed in range(n)))
    expected = whole.values()
    for seed in range(n):
        x, y = batch(seed)
        whole.model.zero_grad()
        F.mse_loss(whole.model(x), y).backward()
        for value, parameter in zip(expected, whole.model.parameters(), strict=True):
            value -= 0.1 * parameter.grad
    for found, value in zip(await model.values(), expected, strict=True):
        np.testing.assert_allclose(found, value, rtol=1e-12, atol=1e-13)


async def test_16_loops_at_once_train_one_model(cluster: psf.Cluster) -> None:
    """Forwards, backwards and steps of all in any order: none fails, each step counts, and it learns."""
    model = Spread(cluster)
    distributed = psf.DistributedOptimizer(optim.Adam(lr=0.003), model.parts)
    first = float((await model.loss(0)).data)

    async def loop() -> None:
        for _ in range(6):
            async with backward(cluster, model, 0) as ctx:
                await distributed.step(ctx, max_norm=1.0)

    await asyncio.gather(*(loop() for _ in range(16)))
    assert {slots["step"] for slots in (await distributed.state_dict())["state"].values()} == {96}
    assert float((await model.loss(0)).data) < 0.7 * first


async def test_two_contexts_and_two_optimizers_that_step_one_parameter(cluster: psf.Cluster) -> None:
    part = cluster.remote("worker-2", Part, (0, 5, 3))
    before = await part.rpc_async().state_dict()
    optimizers = [psf.DistributedOptimizer(optim.Adam(lr=0.0), [part]) for _ in range(2)]
    optimizers += [psf.DistributedOptimizer(optim.SGD(lr=0.1), [part])]
    x = psf.tensor(np.ones((1, 5)), requires_grad=True)
    async with cluster.dist_autograd() as one, cluster.dist_autograd() as other:
        for ctx, factor in ((one, 1.0), (other, 2.0)):
            with ctx.inside():
                out = await part.rpc_async().forward(x)
            await ctx.backward([(out * factor).sum()])
        await asyncio.gather(*(each.step(ctx) for each in optimizers for ctx in (one, other)))
        for optimizer in optimizers:
            steps = {slots["step"] for slots in (await optimizer.state_dict())["state"].values()}
            assert steps == {2}
    after = await part.rpc_async().state_dict()
    slope = 1 - np.tanh(np.ones((1, 5)) @ before["w"] + before["b"]) ** 2
    np.testing.assert_allclose(after["b"], before["b"] - 0.1 * 3 * slope[0], rtol=1e-12)


async def test_a_task_from_outside_the_context_steps_it_too(cluster: psf.Cluster) -> None:
    model = Spread(cluster)
    distributed = psf.DistributedOptimizer(optim.SGD(lr=0.1), model.parts)
    contexts: asyncio.Queue[DistContext] = asyncio.Queue()

    async def stepper() -> None:
        await distributed.step(await contexts.get())

    task = asyncio.create_task(stepper())
    before = await model.values()
    async with backward(cluster, model, 0) as ctx:
        contexts.put_nowait(ctx)
        await task
    assert all((one != other).all() for one, other in zip(await model.values(), before))


async def test_it_steps_under_no_grad_too(cluster: psf.Cluster) -> None:
    """Calls made there belong to no context, but the step is of the one that it is given."""
    model = Spread(cluster)
    distributed = psf.DistributedOptimizer(optim.SGD(lr=0.1), model.parts)
    before = await model.values()
    async with backward(cluster, model, 0) as ctx:
        with psf.no_grad():
            await distributed.step(ctx, max_norm=1.0)
    assert all((one != other).all() for one, other in zip(await model.values(), before))


async def test_a_parameter_that_is_reached_twice_is_stepped_once(cluster: psf.Cluster) -> None:
    part, mine = cluster.remote("worker-0", Part, (0, 5, 3)), Part(1, 3, 2)
    weight = cluster.remote("worker-0", weight_of, (part,))
    items = [weight, part, part, mine, mine.w, cluster.rref(mine)]
    distributed = psf.DistributedOptimizer(optim.SGD(lr=0.5), items)
    before, own = (await part.rpc_async().state_dict())["b"], mine.b.data.copy()
    async with cluster.dist_autograd() as ctx:
        loss = mine(await part.rpc_async().forward(psf.tensor(np.zeros((1, 5)), requires_grad=True))).sum()
        await ctx.backward([loss])
        await distributed.step(ctx)
        np.testing.assert_array_equal(mine.b.data, own - 0.5 * ctx.gradients()[mine.b])
    state = await distributed.state_dict()
    assert state["param_groups"][0]["params"] == ["0", "1.b", "3.w", "3.b"]
    assert {slots["step"] for slots in state["state"].values()} == {1}
    assert ((await part.rpc_async().state_dict())["b"] != before).all()


async def test_a_reference_to_what_lives_here_is_stepped_here(cluster: psf.Cluster) -> None:
    made = cluster.remote("me", Part, (0, 5, 3))  # still being made
    distributed = psf.DistributedOptimizer(optim.SGD(lr=0.5), [made])
    async with cluster.dist_autograd() as ctx:
        part = await made.to_here()
        await ctx.backward([part(batch(0)[0]).sum()])
        before = part.b.data
        await distributed.step(ctx)
        np.testing.assert_array_equal(part.b.data, before - 0.5 * ctx.gradients()[part.b])
    assert distributed.owners == ["me"]


async def test_sparse_gradients_change_their_rows_only(cluster: psf.Cluster) -> None:
    table, twin = cluster.remote("worker-0", Rows), Rows()
    distributed = psf.DistributedOptimizer(optim.Adagrad(lr=0.1), [table])
    local = optim.Adagrad(twin.parameters(), lr=0.1)
    for step in range(3):
        ids = np.array([1, 4, 1, step])
        async with cluster.dist_autograd() as ctx:
            await ctx.backward([((await table.rpc_async().forward(ids)) ** 2).sum()])
            norm = await distributed.step(ctx, max_norm=1.0)
        local.zero_grad()
        (twin(ids) ** 2).sum().backward()
        assert norm == optim.clip_grad_norm_(twin.parameters(), 1.0)
        local.step()
        np.testing.assert_array_equal((await table.rpc_async().state_dict())["table"], twin.table.data)
    np.testing.assert_array_equal(twin.table.data[5], Rows().table.data[5])


async def test_a_state_continues_on_other_members(cluster: psf.Cluster) -> None:
    def kind() -> optim.Optimizer:
        return optim.Adam(lr=optim.schedule.Cosine(0.1, steps=6))

    first, straight = Spread(cluster), Spread(cluster)
    one, through = (psf.DistributedOptimizer(kind(), model.parts) for model in (first, straight))
    await train(cluster, straight, through, range(6))
    await train(cluster, first, one, range(3))
    moved = Spread(cluster, ("", "worker-2", "worker-2"))
    values = await first.values()
    moved.parts[0].take(values[:2])
    for part, own in zip(moved.parts[1:], (values[2:4], values[4:])):
        await part.rpc_async().take(own)
    other = psf.DistributedOptimizer(optim.Adam(lr=0.5), moved.parts)
    await other.load_state_dict(await one.state_dict())
    assert other.param_groups[0]["lr"] == kind().rule.lr
    await train(cluster, moved, other, range(3, 6))
    assert_same(await moved.values(), await straight.values())


async def test_a_failed_context_is_not_in_the_way_of_a_state(cluster: psf.Cluster) -> None:
    model = Spread(cluster)
    distributed = psf.DistributedOptimizer(optim.Adam(lr=0.01), model.parts)
    await train(cluster, model, distributed, range(1))
    saved = await distributed.state_dict()
    async with cluster.dist_autograd() as ctx:
        loss = await model.loss(1)
        loss.register_hook(lambda gradient: int("no"))
        with pytest.raises(ValueError, match="'no'"):
            await ctx.backward([loss])
        await distributed.load_state_dict(saved)
        again = await distributed.state_dict()
    assert {key: slots["step"] for key, slots in again["state"].items()} == dict.fromkeys(saved["state"], 1)


async def test_hyper_parameters_change_between_steps(cluster: psf.Cluster) -> None:
    model, whole = Spread(cluster), Whole()
    distributed = psf.DistributedOptimizer(optim.SGD(lr=0.1), model.parts)
    local = optim.SGD(whole.model.parameters(), lr=0.1)
    for seed, lr in enumerate((0.1, 0.02, 0.3)):
        distributed.param_groups[0]["lr"] = local.param_groups[0]["lr"] = lr
        await train(cluster, model, distributed, range(seed, seed + 1))
        whole.step(local, seed)
    assert_same(await model.values(), whole.values())
    assert (await distributed.state_dict())["param_groups"][0]["lr"] == 0.3
    distributed.param_groups[0]["lr"] = -1.0
    async with backward(cluster, model, 0) as ctx:
        with pytest.raises(psf.ArgumentError, match="lr must be at least 0"):
            await distributed.step(ctx)


async def test_the_optimizers_of_owners_go_with_it(cluster: psf.Cluster) -> None:
    model = Spread(cluster)
    distributed = psf.DistributedOptimizer(optim.SGD(lr=0.1), model.parts)
    await train(cluster, model, distributed, range(1))

    async def kept() -> int:
        values = [info for name in ("worker-0", "worker-1") for info in await cluster.rrefs.list_of(name)]
        return sum("OwnersOptimizer" in info.type for info in values)

    gc.collect()
    before = await kept()
    assert before >= 2
    del distributed
    gc.collect()
    async with asyncio.timeout(10):
        while await kept() > before - 2:  # noqa: ASYNC110 (in another process)
            await asyncio.sleep(0.01)


async def test_a_context_that_has_ended_steps_nothing(cluster: psf.Cluster) -> None:
    model = Spread(cluster)
    distributed = psf.DistributedOptimizer(optim.SGD(lr=0.1), model.parts)
    before = await model.values()
    async with backward(cluster, model, 0) as ctx:
        pass
    with pytest.raises(psf.ContextClosed):
        await distributed.step(ctx)
    assert_same(await model.values(), before)


async def test_it_may_be_made_in_a_context_that_is_left_before_its_items_are_there(
    cluster: psf.Cluster,
) -> None:
    late = cluster.remote("worker-0", part_that_comes_late, ("leave",))
    async with cluster.dist_autograd():
        distributed = psf.DistributedOptimizer(optim.SGD(lr=0.1), [late])
    await cluster.rpc_async("worker-0", let_it_come, ("leave",))
    async with cluster.dist_autograd() as ctx:
        await ctx.backward([(await late.rpc_async().forward(batch(0)[0])).sum()])
        await distributed.step(ctx)
    assert len((await distributed.state_dict())["state"]) == 2


# What can't be right


async def test_a_step_before_any_backward_is_an_error(cluster: psf.Cluster) -> None:
    model = Spread(cluster)
    distributed = psf.DistributedOptimizer(optim.SGD(lr=0.1), model.parts)
    async with cluster.dist_autograd() as ctx:
        loss = await model.loss(0)
        for max_norm in (None, 1.0):
            with pytest.raises(psf.AutogradError, match=r"call `await ctx\.backward\(\[loss\]\)` before"):
                await distributed.step(ctx, max_norm)
        await ctx.backward([loss])
        await distributed.step(ctx)
    assert len((await distributed.state_dict())["state"]) == 6


async def test_a_dead_owner_is_named_and_so_are_those_that_stepped(
    local: psf.LocalCluster, cluster: psf.Cluster
) -> None:
    model = Spread(cluster, ("worker-0", "", "worker-2"))
    distributed = psf.DistributedOptimizer(optim.SGD(lr=0.1), model.parts)
    await train(cluster, model, distributed, range(1))
    before = await Spread.values(spread_of(model.parts[:2]))
    try:
        async with backward(cluster, model, 1) as ctx:
            local.processes["worker-2"].kill()
            with pytest.raises(
                psf.PartialFailure, match=r"worker-2 .*norm.*none stepped.*PeerLost"
            ) as caught:
                await distributed.step(ctx, max_norm=1.0)
            assert (caught.value.failed, caught.value.done) == (("worker-0", "me", "worker-2"), ())
            assert_same(await spread_of(model.parts[:2]).values(), before)
            with pytest.raises(psf.PartialFailure, match=r"worker-2 did not step: .*PeerLost") as caught:
                await distributed.step(ctx)
            assert (caught.value.failed, caught.value.done) == (("worker-2",), ("worker-0", "me"))
            assert isinstance(caught.value.__cause__, psf.PeerLost)
            after = await spread_of(model.parts[:2]).values()
            assert all((one != other).all() for one, other in zip(after, before))
            alone = psf.DistributedOptimizer(optim.SGD(lr=0.1), model.parts[:1])
            await alone.step(ctx)
        with pytest.raises(psf.PeerLost, match="worker-2"):
            psf.DistributedOptimizer(optim.SGD(lr=0.1), model.parts[2:])
    finally:
        await local.restart("worker-2")
        await until(lambda: any(member.name == "worker-2" for member in cluster.members()))


def spread_of(parts: list[Any]) -> Spread:
    spread = Spread.__new__(Spread)
    spread.parts = parts
    return spread


BAD_LOCAL: dict[str, tuple[Callable[[], Any], str]] = {
    "empty": (list, "list .* is empty"),
    "a module, not a list": (lambda: Part(0, 2, 2), "several items: put the Part in a list"),
    "no parameters": (lambda: [nn.Tanh()], "item 0 of the list, a Tanh, has no parameters that require grad"),
    "frozen": (lambda: [Part(0, 2, 2), Frozen()], "item 1 of the list, a Frozen, has no parameters"),
    "constant": (lambda: [constant()], "item 0 of the list, a Tensor, does not require grad"),
    "computed": (lambda: [computed()], "item 0 of the list, a Tensor, was computed from others"),
    "a number": (lambda: [3], "item 0 of the list has no parameters: it is a int"),
}


@pytest.mark.parametrize("case", BAD_LOCAL)
def test_bad_items_of_this_process_are_refused_at_once(case: str) -> None:
    make, message = BAD_LOCAL[case]
    with pytest.raises(psf.ArgumentError, match=message):
        psf.DistributedOptimizer(optim.SGD(lr=0.1), make())


def test_bad_optimizers_are_refused() -> None:
    part = Part(0, 2, 2)
    with pytest.raises(
        psf.ArgumentError, match=r"this SGD has parameters already: .* optim\.SGD\(lr=\.\.\.\)"
    ):
        psf.DistributedOptimizer(optim.SGD(part.parameters(), lr=0.1), [part])
    with pytest.raises(psf.ArgumentError, match="float is no optimizer"):
        psf.DistributedOptimizer(0.1, [part])  # type: ignore[arg-type]


BAD_REMOTE = [
    (nothing, psf.ArgumentError, "item 1 of the list has no parameters: it is a dict"),
    (constant, psf.ArgumentError, "item 1 of the list, a Tensor, does not require grad"),
    (computed, psf.ArgumentError, "item 1 of the list, a Tensor, was computed from others"),
    (Frozen, psf.ArgumentError, "item 1 of the list, a Frozen, has no parameters"),
    (part_that_fails, psf.RemoteError, "no room for a part"),
]


@pytest.mark.parametrize(("function", "error", "message"), BAD_REMOTE)
async def test_bad_items_elsewhere_stop_the_first_step_before_anybody_steps(
    cluster: psf.Cluster, function: Any, error: type[Exception], message: str
) -> None:
    good, bad = cluster.remote("worker-0", Part, (0, 5, 3)), cluster.remote("worker-1", function)
    distributed = psf.DistributedOptimizer(optim.SGD(lr=0.1), [good, bad])
    before = await good.rpc_async().state_dict()
    async with cluster.dist_autograd() as ctx:
        await ctx.backward([(await good.rpc_async().forward(batch(0)[0])).sum()])
        with pytest.raises(psf.PartialFailure, match=f"worker-1 did not get ready: .*{message}") as caught:
            await distributed.step(ctx)
    assert isinstance(caught.value.__cause__, error)
    assert_same(list((await good.rpc_async().state_dict()).values()), list(before.values()))
    async with cluster.dist_autograd() as ctx:
        with pytest.raises(error, match=message.replace("item 1", "item 0")):
            await psf.DistributedOptimizer(optim.SGD(lr=0.1), [bad]).step(ctx)


async def test_a_step_waits_for_items_that_are_still_being_made(cluster: psf.Cluster) -> None:
    late = cluster.remote("worker-0", part_that_comes_late, ("go",))
    distributed = psf.DistributedOptimizer(optim.SGD(lr=0.1), [late])
    async with cluster.dist_autograd() as ctx:
        with pytest.raises(psf.DeadlineExceeded, match="still being made"):
            await distributed.step(ctx, timeout=0.05)
        await cluster.rpc_async("worker-0", let_it_come, ("go",))
        await ctx.backward([(await late.rpc_async().forward(batch(0)[0])).sum()])
        await distributed.step(ctx)
    assert len((await distributed.state_dict())["state"]) == 2


async def test_bad_states_and_norms_are_refused(cluster: psf.Cluster) -> None:
    model = Spread(cluster)
    distributed = psf.DistributedOptimizer(optim.Adagrad(lr=0.1), model.parts)
    async with backward(cluster, model, 0) as ctx:
        with pytest.raises(psf.ArgumentError, match="max_norm must be at least 0, not -1"):
            await distributed.step(ctx, max_norm=-1)
        await distributed.step(ctx)
    state = await distributed.state_dict()
    fewer = psf.DistributedOptimizer(optim.Adagrad(), model.parts[:2])
    with pytest.raises(psf.ArgumentError, match=r"other parameters: only the state has '2\.b'"):
        await fewer.load_state_dict(state)
    with pytest.raises(psf.ArgumentError, match="the state is of adagrad, this optimizer is sgd"):
        await psf.DistributedOptimizer(optim.SGD(), model.parts).load_state_dict(state)
    with pytest.raises(psf.ArgumentError, match="no state of a distributed optimizer"):
        await distributed.load_state_dict({"state": {}})
    bad = {**state, "state": {**state["state"], "0.w": {"step": 1, "sum": np.zeros(3)}}}
    with pytest.raises(psf.PartialFailure, match=r"worker-0 did not load: .*sum has shape") as caught:
        await distributed.load_state_dict(bad)
    assert caught.value.done == ("me", "worker-1")
