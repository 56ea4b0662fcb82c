"""ShardedOptimizer: the bits of one optimizer over all, in a share of the memory; ranks are tasks here."""

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from rank_tasks import RankGroup, on_ranks

import psframework as psf
from psframework import nn, optim
from psframework.autograd.sparse import SparseRows
from psframework.backend import Array, bfloat16
from psframework.ddp import sharded
from psframework.ddp.sharded import ShardedOptimizer
from psframework.testing.strict_device import strict_devices

OPTIMIZERS: dict[str, Callable[..., optim.Optimizer]] = {
    "sgd": lambda p=None: optim.SGD(p, lr=0.1),
    "momentum": lambda p=None: optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01),
    "adam": lambda p=None: optim.Adam(p, lr=0.01),
    "adamw": lambda p=None: optim.AdamW(p, lr=0.01),
    "adagrad": lambda p=None: optim.Adagrad(p),
    "rmsprop": lambda p=None: optim.RMSprop(p, momentum=0.5, centered=True),
    "ftrl": lambda p=None: optim.FTRL(p, l1=0.1),
    "rowwise": lambda p=None: optim.RowWiseAdagrad(p, lr=0.1),
    "lamb": lambda p=None: optim.LAMB(p, lr=0.1, weight_decay=0.01),
}
every_optimizer = pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)


class Model(nn.Module):
    """Parameters of many shapes."""

    def __init__(self, dtype: Any = np.float32) -> None:
        super().__init__()
        rng = np.random.default_rng(0)

        def made(*shape: int) -> nn.Parameter:
            return nn.Parameter(np.asarray(rng.standard_normal(shape)).astype(dtype))

        self.table, self.bias, self.kernel = made(37, 5), made(5), made(3, 2, 3, 3)
        self.gain, self.nothing = made(), made(0, 3)
        self.frozen = nn.Parameter(np.ones(3, dtype), requires_grad=False)
        self.bare = nn.Parameter(np.ones((2, 2), dtype))  # never gets a gradient

    def give(self, step: int, sparse: bool = False) -> None:
        """Gradients of a step, the same on all ranks."""
        for number, (name, parameter) in enumerate(self.named_parameters()):
            if name not in ("frozen", "bare"):
                gradient = np.random.default_rng((step, number)).standard_normal(parameter.shape)
                parameter.grad = np.asarray(gradient).astype(parameter.dtype)
        if sparse:
            rng = np.random.default_rng((step, 99))
            rows = rng.integers(0, 37, 9)
            self.table.grad = SparseRows(rows, rng.standard_normal((9, 5)).astype(np.float32), (37, 5))


def values(model: nn.Module) -> dict[str, Array]:
    return model.state_dict()


def serial(make: Callable[..., optim.Optimizer], steps: int = 4, **given: Any) -> dict[str, Array]:
    model = Model(given.get("dtype", np.float32))
    optimizer = make(model.parameters())
    for step in range(steps):
        model.give(step, given.get("sparse", False))
        optimizer.step()
    return values(model)


def same(mine: Any, theirs: Any) -> None:
    """Nested values are equal, to the bit."""
    assert type(mine) is type(theirs)
    if isinstance(mine, dict):
        assert list(mine) == list(theirs)
        for key in mine:
            same(mine[key], theirs[key])
    elif isinstance(mine, np.ndarray):
        assert mine.dtype == theirs.dtype
        assert mine.shape == theirs.shape
        assert mine.tobytes() == theirs.tobytes()
    else:
        assert mine == theirs


def on(size: int, body: Callable[[Any], Any]) -> list[Any]:
    return asyncio.run(on_ranks(size, body))


@every_optimizer
@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_parameters_equal_the_unsharded_run(make: Any, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharded, "_CHUNK", 64)

    async def rank(group: Any) -> dict[str, Array]:
        model = Model()
        optimizer = ShardedOptimizer(make(), model, group)
        for step in range(4):
            model.give(step)
            assert await optimizer.step()
        return values(model)

    expected = serial(make)
    for each in on(size, rank):
        same(each, expected)


@pytest.mark.parametrize("dtype", [np.float16, bfloat16, np.float64])
@pytest.mark.parametrize("name", ["adam", "lamb"])
def test_other_dtypes(dtype: Any, name: str) -> None:
    async def rank(group: Any) -> dict[str, Array]:
        model = Model(dtype)
        optimizer = ShardedOptimizer(OPTIMIZERS[name](), model, group)
        for step in range(4):
            model.give(step)
            await optimizer.step()
        return values(model)

    for each in on(3, rank):
        same(each, serial(OPTIMIZERS[name], dtype=dtype))


@pytest.mark.parametrize("name", ["sgd", "adam", "adagrad", "ftrl", "rowwise"])
@pytest.mark.parametrize("size", [2, 3])
def test_sparse_gradients(name: str, size: int) -> None:
    """Rows without a gradient stay as they are, wherever the table was cut."""

    async def rank(group: Any) -> dict[str, Array]:
        model = Model()
        optimizer = ShardedOptimizer(OPTIMIZERS[name](), model, group)
        for step in range(4):
            model.give(step, sparse=True)
            await optimizer.step()
        return values(model)

    for each in on(size, rank):
        same(each, serial(OPTIMIZERS[name], sparse=True))


@pytest.mark.parametrize("size", [2, 3, 4])
@pytest.mark.parametrize("shapes", [[(1000, 1000)], [(300, 300), (300,)] * 20, [(64,)] * 999])
def test_state_is_a_share(size: int, shapes: list[tuple[int, ...]]) -> None:
    async def rank(group: Any) -> int:
        parameters = [nn.Parameter(np.zeros(shape, np.float32)) for shape in shapes]
        optimizer = ShardedOptimizer(optim.Adam(), parameters, group)
        for parameter in parameters:
            parameter.grad = np.ones(parameter.shape, np.float32)
        await optimizer.step()
        return optimizer.state_nbytes

    whole = 8 * sum(int(np.prod(shape)) for shape in shapes)
    held = on(size, rank)
    assert sum(held) == whole
    assert max(held) <= whole * (1 / size + 0.05)


@every_optimizer
def test_state_goes_from_one_number_of_ranks_to_another(make: Any) -> None:
    async def first(group: Any) -> Any:
        model = Model()
        optimizer = ShardedOptimizer(make(), model, group)
        for step in range(2):
            model.give(step)
            await optimizer.step()
        return await optimizer.state_dict(), values(model)

    (state, parameters), *others = on(3, first)
    assert [other for other, _ in others] == [None, None]
    plain = Model()
    reference = make(plain.parameters())
    for step in range(2):
        plain.give(step)
        reference.step()
    trained = [p for p in plain.parameters() if p.requires_grad]
    twin = make(trained)
    assert [len(group["params"]) for group in state["param_groups"]] == [6]
    names = [name for name, p in plain.named_parameters() if p.requires_grad]
    index = [name for name, _ in plain.named_parameters()]
    expected = reference.state_dict()["state"]
    same(state["state"], {i: expected[index.index(name)] for i, name in enumerate(names) if name != "bare"})

    async def second(group: Any) -> Any:
        model = Model()
        model.load_state_dict(parameters)
        optimizer = ShardedOptimizer(make(), model, group)
        optimizer.load_state_dict(state)
        for step in range(2, 4):
            model.give(step)
            await optimizer.step()
        return values(model)

    for each in on(2, second):
        same(each, serial(make))
    twin.load_state_dict(state)  # also one that is not sharded
    for step in range(2, 4):
        plain.give(step)
        twin.step()
    same(values(plain), serial(make))


def test_groups_schedules_and_assigned_rates() -> None:
    def groups(model: Model) -> list[dict[str, Any]]:
        return [
            {"params": [model.table], "weight_decay": 0.5},
            {"params": [model.bias, model.kernel], "lr": optim.schedule.Step(0.1, 2)},
        ]

    def train(model: Model, optimizer: Any) -> Any:
        for step in range(4):
            model.give(step)
            if step == 2:
                optimizer.param_groups[0]["lr"] = 0.5
            yield

    async def rank(group: Any) -> dict[str, Array]:
        model = Model()
        optimizer = ShardedOptimizer(optim.AdamW(), groups(model), group)
        for _ in train(model, optimizer):
            await optimizer.step()
        optimizer.zero_grad()
        assert model.table.grad is None
        return values(model)

    model = Model()
    plain = optim.AdamW(groups(model))
    for _ in train(model, plain):
        plain.step()
    for each in on(2, rank):
        same(each, values(model))


def test_clipping_and_loss_scaling_need_nothing_else() -> None:
    """Gradients are the same on all ranks, so each finds the same norm, and the same infinity."""

    def prepare(model: Model, scaler: Any, step: int) -> None:
        model.give(step)
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.grad[...] *= scaler.get_scale()
        if step == 1:
            model.bias.grad[0] = np.inf

    def clip(model: Model, scaler: Any, optimizer: Any) -> None:
        scaler.unscale_(optimizer)
        optim.clip_grad_norm_(model.parameters(), 0.5)

    async def rank(group: Any) -> Any:
        model, scaler = Model(), optim.GradScaler(init_scale=8.0)
        optimizer, taken = ShardedOptimizer(optim.Adam(), model, group), []
        for step in range(4):
            prepare(model, scaler, step)
            if step != 2:
                clip(model, scaler, optimizer)
            taken.append(await optimizer.step(scaler))
            scaler.update()
        return values(model), taken, scaler.get_scale()

    model, scaler = Model(), optim.GradScaler(init_scale=8.0)
    plain = optim.Adam(model.parameters())
    for step in range(4):
        prepare(model, scaler, step)
        if step != 2:
            clip(model, scaler, plain)
        scaler.step(plain)
        scaler.update()
    for parameters, taken, scale in on(3, rank):
        assert taken == [True, False, True, True]
        assert scale == 4.0
        same(parameters, values(model))


def test_on_a_device_everything_stays_there() -> None:
    """Ranks that meet on the host, as a group of CuPy's arrays does without NCCL."""
    with strict_devices("shard-0") as (device,):

        class Staged(RankGroup):
            async def all_gather(self, array: Any, timeout: Any = None) -> Any:
                return device.to_device(await super().all_gather(device.asnumpy(array)))

        async def rank(group: Any) -> Any:
            group.__class__ = Staged
            model = Model().to("shard-0")
            optimizer = ShardedOptimizer(optim.Adam(lr=0.01), model, group)
            host = Model()
            for step in range(4):
                host.give(step, sparse=True)
                for mine, other in zip(model.parameters(), host.parameters()):
                    gradient: Any = other.grad
                    if isinstance(gradient, SparseRows):
                        rows, table = device.to_device(gradient.rows), device.to_device(gradient.values)
                        mine.grad = SparseRows(rows, table, gradient.shape)
                    elif gradient is not None:
                        mine.grad = device.to_device(gradient)
                await optimizer.step()
            return {name: device.asnumpy(array) for name, array in values(model).items()}

        for each in on(2, rank):
            same(each, serial(OPTIMIZERS["adam"], sparse=True))


def test_a_parameter_that_was_replaced_or_lies_otherwise_is_followed() -> None:
    def spoil(model: Model, step: int) -> None:
        if step == 1:
            model.table.data = np.asfortranarray(model.table.data)
        if step == 2:
            model.kernel.data = model.kernel.data * 2

    async def rank(group: Any) -> dict[str, Array]:
        model = Model()
        optimizer = ShardedOptimizer(optim.Adam(), model, group)
        for step in range(4):
            spoil(model, step)
            model.give(step)
            await optimizer.step()
        return values(model)

    model = Model()
    plain = optim.Adam(model.parameters())
    for step in range(4):
        spoil(model, step)
        model.give(step)
        plain.step()
    for each in on(2, rank):
        np.testing.assert_array_equal(each["table"], model.table.data)
        np.testing.assert_array_equal(each["kernel"], model.kernel.data)


def test_an_update_that_fails_on_one_rank_fails_on_all() -> None:
    async def rank(group: RankGroup) -> str:
        first, second = (nn.Parameter(np.ones(8, np.float32)) for _ in range(2))
        optimizer = ShardedOptimizer(optim.SGD(momentum=0.9), [first, second], group)  # type: ignore[arg-type]
        first.grad = np.ones(8, np.float32)
        second.grad = SparseRows(np.array([1]), np.ones(1, np.float32), (8,))
        with pytest.raises(psf.PsfError) as caught:
            await optimizer.step()
        return f"{type(caught.value).__name__}: {caught.value}"

    first, second = on(2, rank)
    assert first.startswith("CollectiveMismatch")
    assert "can't apply a sparse gradient" in first
    assert second.startswith("ArgumentError")


class Held(RankGroup):
    """An all_gather ends only once `free` is set; `asked` is set as soon as there is one."""

    def __init__(self, group: RankGroup) -> None:
        self.__dict__.update(group.__dict__)
        self.asked, self.free = asyncio.Event(), asyncio.Event()

    async def all_gather(self, array: Any, timeout: Any = None) -> Any:
        everywhere = super().all_gather(array)
        self.asked.set()
        await self.free.wait()
        return await everywhere


async def cancelled(optimizer: ShardedOptimizer, when: asyncio.Event, scaler: Any = None) -> None:
    """A step whose caller is cancelled."""
    task = asyncio.create_task(optimizer.step(scaler))
    await asyncio.wait_for(when.wait(), 20)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.parametrize("scaled", [False, True])
def test_after_a_cancelled_step_the_next_call_ends_it(scaled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharded, "_CHUNK", 64)

    async def rank(group: RankGroup) -> dict[str, Array]:
        held = Held(group)
        model, scaler = Model(), optim.GradScaler(init_scale=1.0) if scaled else None
        optimizer = ShardedOptimizer(optim.Adam(lr=0.01), model, held)  # type: ignore[arg-type]
        for step in range(4):
            model.give(step)
            if group.rank == 0 and step == 2:
                await cancelled(optimizer, held.asked, scaler)
            held.free.set()
            assert await optimizer.step(scaler)
            held.asked.clear()
            held.free.clear()
            if scaler is not None:
                scaler.update()
        return values(model)

    for each in on(2, rank):
        same(each, serial(OPTIMIZERS["adam"]))


def test_cancelled_in_the_update_it_is_not_updated_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    async def rank(group: RankGroup) -> dict[str, Array]:
        model = Model()
        optimizer = ShardedOptimizer(optim.Adam(lr=0.01), model, group)  # type: ignore[arg-type]
        model.give(0)
        if group.rank == 0:
            begun, loop, update = asyncio.Event(), asyncio.get_running_loop(), optimizer._update

            def reported(step: Any) -> Array:
                loop.call_soon_threadsafe(begun.set)
                return update(step)

            monkeypatch.setattr(optimizer, "_update", reported)
            await cancelled(optimizer, begun)
        assert await optimizer.step()
        return values(model)

    for each in on(2, rank):
        same(each, serial(OPTIMIZERS["adam"], steps=1))


def test_after_a_failed_step_the_next_call_updates_only_what_was_not(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise MemoryError("no room for the state")

    async def rank(group: RankGroup) -> dict[str, Array]:
        model = Model()
        make: Any = OPTIMIZERS["momentum"]
        optimizer = ShardedOptimizer(make(), model, group)  # type: ignore[arg-type]
        model.give(0)
        with monkeypatch.context() as patch:
            if group.rank == 0:
                patch.setattr(optimizer._mine, "step", fail)
            with pytest.raises(psf.CollectiveMismatch if group.rank else MemoryError, match="no room"):
                await optimizer.step()
        assert await optimizer.step()
        return values(model)

    for each in on(2, rank):
        same(each, serial(OPTIMIZERS["momentum"], steps=1))


def test_zero_grad_gives_up_a_cancelled_step() -> None:
    """The next step waits until that has ended, and is another one."""

    async def rank(group: RankGroup) -> dict[str, Array]:
        held = Held(group)
        model = Model()
        optimizer = ShardedOptimizer(optim.Adam(lr=0.01), model, held)  # type: ignore[arg-type]
        for step in range(2):
            optimizer.zero_grad()
            model.give(step)
            if group.rank == 0 and step == 0:
                await cancelled(optimizer, held.asked)
                held.free.set()
                continue
            held.free.set()
            assert await optimizer.step()
        return values(model)

    for each in on(2, rank):
        same(each, serial(OPTIMIZERS["adam"], steps=2))


def test_graphs_over_the_old_values_notice() -> None:
    async def rank(group: Any) -> None:
        model = Model()
        optimizer = ShardedOptimizer(optim.SGD(), model, group)
        loss = (model.bias * model.bias).sum() + (model.table * model.table).sum()
        model.give(0)
        await optimizer.step()
        with pytest.raises(psf.AutogradError, match="changed in place"):
            loss.backward()

    on(2, rank)


def test_what_is_wrong_is_said() -> None:
    group: Any = RankGroup(0, 1, {})
    model = Model()
    with pytest.raises(psf.ArgumentError, match="has parameters already"):
        ShardedOptimizer(optim.Adam(model.parameters()), model, group)
    with pytest.raises(psf.ArgumentError, match=r"a psf\.ProcessGroup"):
        ShardedOptimizer(optim.Adam(), model, None)  # type: ignore[arg-type]
    with pytest.raises(psf.ArgumentError, match="is no optimizer"):
        ShardedOptimizer(optim.Adam, model, group)  # type: ignore[arg-type]
    with pytest.raises(psf.ArgumentError, match="no parameter that requires grad"):
        ShardedOptimizer(optim.Adam(), model.requires_grad_(False), group)
    optimizer = ShardedOptimizer(optim.Adam(), [model.table, model.bias], group)
    state = optim.Adam([model.table]).state_dict()
    with pytest.raises(psf.ArgumentError, match=r"groups with \[1\] parameters, this optimizer has \[2\]"):
        optimizer.load_state_dict(state)
    with pytest.raises(psf.ArgumentError, match="None elsewhere"):
        optimizer.load_state_dict(None)  # type: ignore[arg-type]
    groups = optim.Adam([model.table, model.bias]).state_dict()["param_groups"]
    slots = {"step": 1, "exp_avg": np.zeros((5, 37)), "exp_avg_sq": np.zeros((37, 5))}
    with pytest.raises(psf.ArgumentError, match=r"parameter 0: exp_avg has shape \(5, 37\)"):
        optimizer.load_state_dict({"state": {0: slots}, "param_groups": groups})
    with pytest.raises(psf.ArgumentError, match="the state is of sgd"):
        optimizer.load_state_dict(optim.SGD([model.table, model.bias]).state_dict())
