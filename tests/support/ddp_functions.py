"""DistributedDataParallel of workers: functions that tests call in their processes."""

import gc
import os
import signal
import weakref
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np

import psframework as psf
from psframework import nn, optim
from psframework.autograd import Tensor
from psframework.nn import functional as F

ROWS = 6
TINY = 0.001  # MiB: several buckets even for a small model


class Net(nn.Module):
    """A body, and a head that some losses leave out."""

    def __init__(self, dtype: Any = np.float64, seed: int = 0) -> None:
        draw = np.random.default_rng(seed)
        self.first = nn.Linear(12, 32, dtype=dtype)
        self.second = nn.Linear(32, 16, dtype=dtype)
        self.head = nn.Linear(16, 5, dtype=dtype)
        self.extra = nn.Linear(16, 5, dtype=dtype)
        for parameter in self.parameters():
            parameter.data[...] = draw.normal(size=parameter.shape) * 0.3

    def forward(self, x: Any, extra: bool = True) -> Tensor:
        hidden = F.tanh(self.second(F.tanh(self.first(x))))
        out = self.head(hidden)
        return out + self.extra(hidden) if extra else out  # type: ignore[no-any-return]


class Normed(nn.Module):
    """With running statistics."""

    def __init__(self) -> None:
        psf.manual_seed(3)
        self.first = nn.Linear(12, 8)
        self.norm = nn.BatchNorm1d(8)
        self.head = nn.Linear(8, 5)

    def forward(self, x: Any) -> Tensor:
        return self.head(self.norm(self.first(x)))  # type: ignore[no-any-return]


def batch(rank: int, step: int, dtype: Any = np.float64) -> tuple[Any, Any]:
    draw = np.random.default_rng(1000 * step + rank)
    return draw.normal(size=(ROWS, 12)).astype(dtype), draw.integers(0, 5, ROWS)


def whole(size: int, step: int, dtype: Any = np.float64) -> tuple[Any, Any]:
    """The batches of all ranks."""
    xs, ys = zip(*[batch(rank, step, dtype) for rank in range(size)])
    return np.concatenate(xs), np.concatenate(ys)


def optimizer_of(model: nn.Module) -> optim.Optimizer:
    return optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def alone(size: int, steps: int, dtype: Any = np.float64) -> dict[str, Any]:
    """What one process makes of the batches of all ranks."""
    model = Net(dtype)
    optimizer = optimizer_of(model)
    for step in range(steps):
        x, y = whole(size, step, dtype)
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
    return model.state_dict()


async def group_of(name: str, size: int) -> psf.ProcessGroup:
    return await psf.current_cluster().process_group(name, size)


def failure(error: BaseException) -> dict[str, str]:
    return {"type": type(error).__name__, "text": str(error)}


@psf.remote
async def train(name: str, size: int, steps: int, dtype: str, options: dict[str, Any]) -> dict[str, Any]:
    """Trains; every rank begins with other values. Returns transport and parameters."""
    async with await group_of(name, size) as group:
        kind = np.dtype(dtype)
        model = Net(kind, seed=group.rank)
        async with await psf.DistributedDataParallel(model, group, TINY, **options) as ddp:
            optimizer = optimizer_of(model)
            for step in range(steps):
                x, y = batch(group.rank, step, kind)
                await ddp.backward(F.cross_entropy(ddp(x), y))
                optimizer.step()
                optimizer.zero_grad()
            buckets = len(ddp._reducer.buckets)
        return {"transport": group.transport, "buckets": buckets, "state": model.state_dict()}


@psf.remote
async def uneven(name: str, size: int, divide: bool) -> dict[str, Any]:
    """Rank r has 10 + r batches."""
    async with await group_of(name, size) as group:
        model = Net()
        ddp = await psf.DistributedDataParallel(model, group, TINY)
        optimizer = optimizer_of(model)
        steps = 0
        async with ddp.join(divide_by_initial_world_size=divide):
            for step in range(10 + group.rank):
                x, y = batch(group.rank, step)
                await ddp.backward(F.cross_entropy(ddp(x), y))
                optimizer.step()
                optimizer.zero_grad()
                steps += 1
        await ddp.close()
        return {"steps": steps, "state": model.state_dict()}


@psf.remote
async def unused(name: str, size: int, find: bool) -> dict[str, Any]:
    """Rank 1 leaves a head out, in the second of three steps; a step that fails is left out by all."""
    async with await group_of(name, size) as group:
        model = Net()
        ddp = await psf.DistributedDataParallel(model, group, TINY, find_unused_parameters=find)
        optimizer = optimizer_of(model)
        errors = []
        for step in range(3):
            x, y = batch(group.rank, step)
            try:
                await ddp.backward(F.cross_entropy(ddp(x, extra=not (step == 1 and group.rank == 1)), y))
                optimizer.step()
            except psf.CollectiveMismatch as error:
                errors.append(failure(error))
            optimizer.zero_grad()
        await ddp.close()
        return {"errors": errors, "state": model.state_dict()}


@psf.remote
async def other_model(name: str, size: int) -> dict[str, str]:
    """Rank 1 has one more parameter."""
    async with await group_of(name, size) as group:
        model: Any = Net()
        if group.rank == 1:
            model.more = nn.Linear(3, 2)
        try:
            await psf.DistributedDataParallel(model, group)
        except psf.ModelMismatch as error:
            return failure(error)
        return {}


@psf.remote
async def too_early(name: str, size: int) -> list[dict[str, str]]:
    async with await group_of(name, size) as group:
        ddp = psf.DistributedDataParallel(Net(), group)
        errors = []
        x, y = batch(0, 0)
        try:
            ddp(x)
        except psf.ArgumentError as error:
            errors.append(failure(error))
        try:
            await ddp.backward(F.cross_entropy(Net()(x), y))
        except psf.ArgumentError as error:
            errors.append(failure(error))
        await ddp
        await ddp.backward(F.cross_entropy(ddp(x), y))
        await ddp.close()
        return errors


@psf.remote
async def accumulate(name: str, size: int, steps: int) -> dict[str, Any]:
    """The gradients of several batches, reduced with the last."""
    async with await group_of(name, size) as group:
        model = Net()
        async with await psf.DistributedDataParallel(model, group, TINY) as ddp:
            before = group.last_completed
            for step in range(steps):
                x, y = batch(group.rank, step)
                with ddp.no_sync() if step < steps - 1 else nullcontext():
                    await ddp.backward(F.cross_entropy(ddp(x), y) / steps)
                    if step < steps - 1:
                        assert group.last_completed == before
            return {each: np.array(parameter.grad) for each, parameter in model.named_parameters()}


@psf.remote
async def buffers(name: str, size: int) -> dict[str, Any]:
    async with await group_of(name, size) as group:
        model = Normed()
        async with await psf.DistributedDataParallel(model, group) as ddp:
            for step in range(5):
                x, y = batch(group.rank, step, np.float32)
                await ddp.backward(F.cross_entropy(ddp(x), y))
                ddp.zero_grad()
        return model.state_dict()


@psf.remote
async def until_one_dies(name: str, size: int, victim: int) -> dict[str, Any]:
    """A rank kills itself in the middle of a backward; the others go on without it."""
    group = await group_of(name, size)
    model = Net(seed=group.rank)
    ddp = await psf.DistributedDataParallel(model, group, TINY)
    optimizer = optimizer_of(model)

    def last_breath(gradient: Any) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    async def one(ddp: Any, step: int, dies: bool = False) -> None:
        x, y = batch(group.rank, step)
        hidden = F.tanh(ddp.first(x))
        if dies:
            hidden.register_hook(last_breath)
        hidden = F.tanh(ddp.second(hidden))
        await ddp.backward(F.cross_entropy(ddp.head(hidden) + ddp.extra(hidden), y))
        optimizer.step()
        optimizer.zero_grad()

    for step in range(3):
        await one(ddp, step)
    told: dict[str, str] = {}
    try:
        await one(ddp, 3, dies=group.rank == victim)
    except psf.PeerLost as error:
        told = failure(error) | {"peer": error.peer}
    assert all(parameter.grad is None for parameter in model.parameters())
    async with await group.shrink() as group:
        async with await psf.DistributedDataParallel(model, group, TINY) as again:
            for step in range(4, 8):
                await one(again, step)
        return {"told": told, "size": group.size, "state": model.state_dict()}


@psf.remote
async def leaves_nothing(name: str, size: int) -> dict[str, Any]:
    """What is alive with the collector of cycles off, and mapped, after everything was closed."""
    gc.collect()
    gc.disable()
    try:
        before = mapped()
        alive = [each() is not None for each in await _train_and_drop(name, size)]
        gc.collect()  # for the group's own segment
        return {"alive": alive, "mapped": mapped() - before}
    finally:
        gc.enable()


def mapped() -> int:
    """Mappings of segments."""
    return Path("/proc/self/maps").read_text().count("memfd:psframework")


async def _train_and_drop(name: str, size: int) -> list[Any]:
    async with await group_of(name, size) as group:
        model = Net()
        ddp = await psf.DistributedDataParallel(model, group, TINY)
        for step in range(3):
            x, y = batch(group.rank, step)
            await ddp.backward(F.cross_entropy(ddp(x), y))
            ddp.zero_grad()
        alive = [weakref.ref(ddp), weakref.ref(model), weakref.ref(ddp._reducer)]
        await ddp.close()
        return alive
