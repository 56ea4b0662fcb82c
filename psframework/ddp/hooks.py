"""Communication hooks: what happens to a bucket of gradients in place of a plain average over all ranks.

A hook is called with a `Bucket`, on the event loop, and leaves the average of all ranks in `bucket.buffer`,
or returns it:

    async def squeezed(bucket):
        small = bucket.buffer.astype(np.float16)
        return await bucket.group.all_reduce(small, psf.ReduceOp.AVG)

    ddp = await psf.DistributedDataParallel(model, group, hook=squeezed)

In each backward the hook is called for bucket 0, 1, 2, ..., each time after the call before has ended, so its
collectives come in the same order on all ranks. It may be an ordinary function that returns an awaitable.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

from psframework import backend
from psframework.autograd.tensor import Tensor
from psframework.backend import Array
from psframework.collective.ops import ReduceOp
from psframework.ddp.bucket import Bucket
from psframework.ddp.compression import HookStats
from psframework.ddp.half import BF16, FP16
from psframework.ddp.power_sgd import PowerSGD
from psframework.ddp.top_k import TopK
from psframework.errors import ArgumentError

__all__ = ["BF16", "FP16", "Bucket", "Hook", "HookStats", "PowerSGD", "TopK", "run_hook"]

Hook: TypeAlias = Callable[[Bucket], Awaitable[Array | None] | Array | None]
"""Leaves the average of all ranks in `bucket.buffer`, or returns it."""


async def average(bucket: Bucket) -> None:
    """What the group does where there is no hook."""
    await bucket.group.all_reduce(bucket.buffer, ReduceOp.AVG)


async def run_hook(hook: Hook, bucket: Bucket) -> None:
    """Has `hook` reduce the bucket; afterwards the average of all ranks is in `bucket.buffer`.

    Raises:
        ArgumentError: the hook returned something else than an array of the buffer's shape, or nothing.
        Exception: what the hook raised.
    """
    buffer = bucket.buffer
    try:
        answer: Any = hook(bucket)
        if inspect.isawaitable(answer):
            answer = await answer
        if answer is None:
            answer = bucket.buffer  # where a hook may have put another array
    finally:
        bucket.buffer = buffer
    if isinstance(answer, Tensor):
        answer = answer.data
    if answer is buffer:
        return
    if not backend.is_array(answer) or answer.shape != buffer.shape:
        what = f"an array of shape {answer.shape}" if backend.is_array(answer) else type(answer).__name__
        raise ArgumentError(
            f"the communication hook returned {what}: return nothing and leave the average in bucket.buffer, "
            f"or return an array of its shape {buffer.shape}"
        )
    buffer[...] = answer
