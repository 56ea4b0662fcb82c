"""Functions that tests of distributed autograd call in other processes."""

import asyncio
import gc
import os
import threading
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from typing import Any

import numpy as np
import psutil

import psframework as psf
from psframework import nn
from psframework.autograd.node import Node
from psframework.dist_autograd import passenger
from psframework.dist_autograd.backward import Backward
from psframework.dist_autograd.context import Context
from psframework.dist_autograd.engine import LocalPart
from psframework.dist_autograd.ids import ContextId
from psframework.dist_autograd.pairs import Received, RecvNode, Sent

KEPT = (Backward, LocalPart, Node, Received, RecvNode, Sent)


@psf.remote
def add(x: Any, y: Any) -> Any:
    return x + y


@psf.remote
def twice(x: Any) -> Any:
    return x * 2.0


@psf.remote
@psf.batched(max_size=4, max_wait=0.1)
def twice_together(xs: list[Any]) -> Any:
    """What several calls bring, as one."""
    return psf.ops.stack(xs) * 2.0


@psf.remote
def both(x: Any) -> Any:
    """Two tensors and something else."""
    return x * 2.0, x * 3.0, {"both": [1, "one", np.arange(3)]}


@psf.remote
def requires_grad(x: Any) -> bool:
    return bool(x.requires_grad)


@psf.remote
async def ask_and_forget(names: list[str]) -> None:
    """Asks a member with a tensor of its own, through others or at once, and uses nothing of the answer."""
    call = psf.current_cluster().rpc_async
    if len(names) > 1:
        await call(names[-1], ask_and_forget, (names[:-1],))
    else:
        await call(names[0], twice, (psf.tensor(np.ones(2), requires_grad=True),))


@psf.remote
async def forward_to(names: list[str], x: Any) -> Any:
    """Doubles it, and has the next one of those members go on."""
    x = x * 2.0
    if not names:
        return x
    return await psf.current_cluster().rpc_async(names[0], forward_to, (names[1:], x))


@psf.remote
class Layer:
    """A weight that is kept elsewhere."""

    def __init__(self, *numbers: float, dtype: str = "float64") -> None:
        self.weight = nn.Parameter(np.array(numbers, dtype))

    def forward(self, x: Any) -> Any:
        return x * self.weight

    async def forward_by(self, other: psf.RRef, x: Any) -> Any:
        """Its own layer after another one, in another process."""
        return await other.rpc_async().forward(x) * self.weight

    def pieces(self, n: int) -> Iterator[Any]:
        for number in range(n):
            yield self.weight * float(number)

    async def pieces_later(self, n: int) -> AsyncIterator[Any]:
        for number in range(n):
            await asyncio.sleep(0)
            yield self.weight * float(number)

    def gradient(self, context: tuple[int, int]) -> Any:
        """The weight's gradient in a context; None if it has none."""
        found = psf.current_cluster().dist.contexts.find(ContextId(*context))
        return found.gradients.get(self.weight)

    def grad(self) -> Any:
        return self.weight.grad


@psf.remote
class Table:
    """Rows that are looked up elsewhere."""

    def __init__(self, rows: int, width: int) -> None:
        self.rows = nn.Embedding(rows, width, sparse=True)

    def look_up(self, ids: Any) -> Any:
        return self.rows(ids)

    def gradient(self, context: tuple[int, int]) -> Any:
        found = psf.current_cluster().dist.contexts.find(ContextId(*context))
        gradient = found.gradients[self.rows.weight]
        return type(gradient).__name__, gradient.to_dense()


@psf.remote
async def make_there(name: str, numbers: list[float]) -> psf.RRef:
    """A layer in a third process."""
    return psf.current_cluster().remote(name, Layer, numbers)


@psf.remote
async def compute_there(name: str, x: Any) -> psf.RRef:
    """A result that stays in a third process."""
    return psf.current_cluster().remote(name, twice, (x,))


@psf.remote
async def fetch_and_double(rref: psf.RRef) -> Any:
    return await rref.to_here() * 2.0


async def _end() -> None:
    """The end of the context that this runs in."""
    here = passenger.current()
    assert here is not None
    while here.ended is None:  # noqa: ASYNC110
        await asyncio.sleep(0.001)


@psf.remote
async def twice_afterwards(x: Any) -> Any:
    """Computes when its context has ended."""
    await _end()
    return x * 2.0


@psf.remote
async def ask_afterwards(name: str, x: Any) -> Any:
    """Makes a call when its context has ended."""
    await _end()
    return await psf.current_cluster().rpc_async(name, twice, (x,))


@psf.remote
async def for_ever(x: Any) -> Any:
    await asyncio.sleep(600)
    return x * 2.0


@psf.remote
async def call_then(through: str, name: str, x: Any) -> Any:
    """What fails in its backward, at `name`, comes back by way of another one."""
    me = psf.current_cluster()
    made = await me.rpc_async(name, failing, (x,))
    return await me.rpc_async(through, twice, (made,)) * 2.0


@psf.remote
async def fail_by_way_of(name: str, x: Any) -> Any:
    """What comes back from another one, by way of which the backward goes on, fails first."""
    return Failing.apply(await psf.current_cluster().rpc_async(name, twice, (x,)))


@psf.remote
async def gradient_of_its_own(names: list[str], x: Any) -> Any:
    """Of (forward_to(names, x))^2 with respect to x, in a context that this process opens."""
    x = psf.tensor(x.numpy(), requires_grad=True)
    async with psf.current_cluster().dist_autograd() as ctx:
        y = await psf.current_cluster().rpc_async(names[0], forward_to, (names[1:], x))
        await ctx.backward([(y * y).sum()])
        return ctx.gradients()[x]


@psf.remote
async def backward_of_others(x: Any) -> None:
    """Tries to go back through what another context's message brought."""
    async with psf.current_cluster().dist_autograd() as ctx:
        await ctx.backward([(x * 1.0).sum()])


weight = nn.Parameter(np.ones(1))


@psf.remote
def with_a_lock() -> Any:
    return weight * 2.0, threading.Lock()


@psf.remote
async def each_of(values: Any) -> AsyncIterator[Any]:
    for value in values:
        yield value


@psf.remote
async def current_context() -> tuple[int, int] | None:
    found = passenger.current()
    return None if found is None else tuple(found.id)


@psf.remote
def current_context_in_a_thread() -> tuple[int, int] | None:
    found = passenger.current()
    return None if found is None else tuple(found.id)


@psf.remote
async def call_back(name: str, x: Any) -> Any:
    """Has its caller, or another one, work on it, in tasks of their own."""
    me = psf.current_cluster()

    async def ask(y: Any) -> Any:
        return await me.rpc_async(name, twice, (y,))

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(ask(x * float(number))) for number in (1, 2)]
    return tasks[0].result() + tasks[1].result()


class Failing(psf.Function):
    """Its backward raises."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x * 2.0

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        raise ValueError("no gradient today")


class Slow(psf.Function):
    """Its backward holds the compute thread until it is let go."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x * 1.0

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        gate.clear()
        held.set()
        gate.wait(60.0)
        held.clear()
        return (gradient,)


gate, held = threading.Event(), threading.Event()


@psf.remote
def failing(x: Any) -> Any:
    return Failing.apply(x)


@psf.remote
def slow(x: Any) -> Any:
    return Slow.apply(x)


@psf.remote
def is_held() -> bool:
    """Whether a backward of `slow` runs here."""
    return held.is_set()


@psf.remote
def let_go() -> None:
    gate.set()


@psf.remote
def messages_of(context: tuple[int, int]) -> list[tuple[int, int]]:
    """Names of what left and came in a context."""
    found = psf.current_cluster().dist.contexts.find(ContextId(*context))
    return [tuple(id) for id in (*found.sent, *found.received)]


@psf.remote
def kept() -> dict[str, int]:
    """What distributed autograd keeps here: contexts, ends of messages, nodes with their arrays."""
    gc.collect()
    found = Counter(type(each).__name__ for each in gc.get_objects() if type(each) in KEPT)
    dist = psf.current_cluster().dist
    return {**found, **{"contexts": len(dist.contexts)}} if len(dist.contexts) else dict(found)


@psf.remote
def contexts_in_memory() -> int:
    """Also those that have ended, of which tasks and threads may still have the empty object."""
    return sum(type(each) is Context for each in gc.get_objects())


@psf.remote
def remembered() -> int:
    """How many contexts that have ended this process remembers one by one."""
    return psf.current_cluster().dist.contexts.remembered


@psf.remote
def pid() -> int:
    return os.getpid()


@psf.remote
def resident() -> int:
    """Bytes of this process."""
    gc.collect()
    return int(psutil.Process().memory_info().rss)
