"""Hooks, sparse tables and sharded optimizers under DistributedDataParallel: what workers do in tests."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np

import psframework as psf
from psframework import nn, optim
from psframework.backend import Array
from psframework.ddp import hooks

F = nn.functional


async def own(bucket: hooks.Bucket) -> Array:
    """A user's: float16 on the way."""
    small = bucket.buffer.astype(np.float16)
    await bucket.group.all_reduce(small, psf.ReduceOp.AVG)
    return small


async def broken(bucket: hooks.Bucket) -> None:
    """A user's that fails on one rank."""
    if bucket.group.rank == 1:
        raise ZeroDivisionError("the hook of rank 1")
    await bucket.group.all_reduce(bucket.buffer, psf.ReduceOp.AVG)


HOOKS: dict[str, Any] = {
    "none": lambda: None,
    "FP16": hooks.FP16,
    "BF16": hooks.BF16,
    "PowerSGD": lambda: hooks.PowerSGD(rank=2, start=10),
    "TopK": lambda: hooks.TopK(ratio=0.01),
    "FP16 without feedback": lambda: hooks.FP16(error_feedback=False),
    "own": lambda: own,
}


def digest(module: nn.Module) -> str:
    return hashlib.sha256(b"".join(array.tobytes() for array in module.state_dict().values())).hexdigest()


def network(huge: int = 0) -> nn.Module:
    """For digits; with `huge`, one parameter has nearly all elements."""
    psf.manual_seed(0)
    if huge:
        return nn.Sequential(nn.Linear(64, huge), nn.Tanh(), nn.Linear(huge, 10))
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 10))


async def make_group(size: int) -> psf.ProcessGroup:
    """The group of that many workers; made once."""
    return await psf.current_cluster().process_group(f"hooks-{size}", size)


@psf.remote
async def digits(size: int, hook: str, epochs: int) -> dict[str, Any]:
    """Trains on the digits; how many of the test images are right, and what was sent."""
    group, model, data = await make_group(size), network(), psf.data.digits(flat=True)
    made = HOOKS[hook]()
    async with await psf.DistributedDataParallel(model, group, hook=made, bucket_cap_mb=0.04) as ddp:
        optimizer = optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        rng = np.random.default_rng(5)
        for _ in range(epochs):
            for rows in rng.permutation(len(data.x_train))[:1408].reshape(-1, 64):
                mine = rows[group.rank :: group.size]
                await ddp.backward(F.cross_entropy(ddp(data.x_train[mine]), data.y_train[mine]))
                optimizer.step()
                optimizer.zero_grad()
    with psf.no_grad():
        right = (model(data.x_test).data.argmax(1) == data.y_test).mean()
    stats = getattr(made, "stats", hooks.HookStats())
    told = {"ratio": stats.ratio, "steps": stats.steps}
    return {"accuracy": 100 * float(right), "digest": digest(model), **told}


@psf.remote
async def owed(size: int, hook: str, steps: int) -> dict[str, Any]:
    """Sums of this rank's gradients, of the averages that arrived, and what is still to be sent."""
    group, model, twin = await make_group(size), network(), network()
    made = HOOKS[hook]()
    sums: dict[str, list[Array]] = {}
    async with await psf.DistributedDataParallel(model, group, hook=made, bucket_cap_mb=0.02) as ddp:
        rng = np.random.default_rng(group.rank)
        for _ in range(steps):
            x, y = rng.standard_normal((8, 64)).astype(np.float32), rng.integers(0, 10, 8)
            F.cross_entropy(twin(x), y).backward()
            await ddp.backward(F.cross_entropy(ddp(x), y))
            for (name, parameter), reference in zip(model.named_parameters(), twin.parameters()):
                sums.setdefault(name, []).append(np.stack([reference.grad, parameter.grad]))
            model.zero_grad()
            twin.zero_grad()
    return {
        name: (*list(np.sum(values, axis=0, dtype=np.float64)), made.residuals().get(name, 0 * values[0][0]))
        for name, values in sums.items()
    }


@psf.remote
async def failing(size: int) -> str:
    """What comes of a hook that fails on one rank; the group can be used afterwards."""
    group, text = await make_group(size), ""
    async with await psf.DistributedDataParallel(network(), group, hook=broken) as ddp:
        try:
            await ddp.backward(ddp(np.ones((2, 64), np.float32)).sum())
        except Exception as error:
            text = f"{type(error).__name__}: {error}"
    await group.barrier()
    return text


class Recommender(nn.Module):
    """A sparse table below a dense layer."""

    def __init__(self, sparse: bool = True) -> None:
        psf.manual_seed(1)
        self.table = nn.Embedding(50, 8, sparse=sparse)
        self.top = nn.Linear(8, 3)

    def forward(self, ids: Array) -> psf.Tensor:
        scores: psf.Tensor = self.top(self.table(ids).mean(1))
        return scores


IDS = np.random.default_rng(2).integers(0, 50, (12, 4))
LABELS = np.random.default_rng(3).integers(0, 3, 12)


@psf.remote
async def sparse(size: int, scaled: bool) -> dict[str, Any]:
    """Steps with a sparse table; the parameters, and whether its gradients were sparse.

    Args:
        size: number of workers.
        scaled: by a GradScaler; rank 1 has an infinity in the second of four steps.
    """
    group, model = await make_group(size), Recommender()
    taken, kinds, scaler = [], set(), optim.GradScaler(init_scale=4.0, enabled=scaled)
    async with await psf.DistributedDataParallel(model, group) as ddp:
        optimizer = optim.SGD(model.parameters(), lr=0.5)
        for step in range(4):
            mine = slice(group.rank * 12 // size, (group.rank + 1) * 12 // size)
            loss = scaler.scale(F.cross_entropy(ddp(IDS[mine]), LABELS[mine]))
            if scaled and step == 1 and group.rank == 1:
                loss = loss * np.float32(np.inf)
            await ddp.backward(loss)
            kinds.add(type(model.table.weight.grad).__name__)
            taken.append(scaler.step(optimizer))
            scaler.update()
            optimizer.zero_grad()
    return {"state": model.state_dict(), "taken": taken, "kinds": kinds, "scale": scaler.get_scale()}


def serial_sparse(steps: int) -> dict[str, Array]:
    """The same steps in one process, dense."""
    model = Recommender(sparse=False)
    optimizer = optim.SGD(model.parameters(), lr=0.5)
    for _ in range(steps):
        F.cross_entropy(model(IDS), LABELS).backward()
        optimizer.step()
        optimizer.zero_grad()
    return model.state_dict()


OPTIMIZERS: dict[str, Any] = {
    "Adam": lambda p=None: optim.Adam(p, lr=1e-2),
    "momentum": lambda p=None: optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=1e-3),
    "RowWiseAdagrad": lambda p=None: optim.RowWiseAdagrad(p, lr=0.1),
    "LAMB": lambda p=None: optim.LAMB(p, lr=1e-2),
}


@psf.remote
async def sharded(
    size: int, kind: str, steps: tuple[int, int], start: dict[str, Any] | None = None, huge: int = 0
) -> dict[str, Any]:
    """Trains by a sharded and by a whole optimizer side by side.

    Args:
        size: number of workers.
        kind: of optimizer.
        steps: first and last + 1; each has data of its own.
        start: model and state to go on from, on rank 0.
        huge: as of `network`.

    Returns:
        Whether all bits were the same, bytes of state here and of all, and model and state to go on from.
    """
    group, mine, whole = await make_group(size), network(huge), network(huge)
    ddp, other = [await psf.DistributedDataParallel(model, group) for model in (mine, whole)]
    optimizer = psf.ShardedOptimizer(OPTIMIZERS[kind](), mine if kind == "LAMB" else ddp, group)
    reference = OPTIMIZERS[kind](whole.parameters())
    start = await group.broadcast_object(start, src=0)
    if start is not None:
        for model in (mine, whole):
            model.load_state_dict(start["model"])
        optimizer.load_state_dict(start["state"])
        reference.load_state_dict(start["state"])
    for step in range(*steps):
        rng = np.random.default_rng((step, group.rank))
        x, y = rng.standard_normal((8, 64)).astype(np.float32), rng.integers(0, 10, 8)
        await ddp.backward(F.cross_entropy(ddp(x), y))
        await other.backward(F.cross_entropy(other(x), y))
        assert len({optim.clip_grad_norm_(model.parameters(), 1.0) for model in (mine, whole)}) == 1
        await optimizer.step()
        reference.step()
        optimizer.zero_grad()
        reference.zero_grad()
    await ddp.close()
    await other.close()
    state = await optimizer.state_dict()
    return {
        "same": digest(mine) == digest(whole),
        "digest": digest(mine),
        "nbytes": (optimizer.state_nbytes, reference.state_nbytes),
        "next": None if state is None else {"model": mine.state_dict(), "state": state},
        "states": None if state is None else _equal(state, reference.state_dict()),
    }


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return list(one) == list(other) and all(_equal(one[key], other[key]) for key in one)
    if isinstance(one, np.ndarray):
        return bool(one.dtype == other.dtype and one.tobytes() == other.tobytes())
    return bool(one == other)
