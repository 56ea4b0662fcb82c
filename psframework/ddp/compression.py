"""What hooks that compress have in common: how much they sent, what they still owe, and who computes."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, ParamSpec, TypeVar

from psframework.backend import Array, follow
from psframework.ddp.bucket import Bucket
from psframework.ddp.residuals import Residuals
from psframework.errors import ArgumentError
from psframework.optim.scaler import GradScaler

P = ParamSpec("P")
R = TypeVar("R")

_AT_ONCE: Final = 1 << 16
"""Bytes of a bucket that is handled on the event loop: less work than to wake a thread."""


@dataclass(slots=True)
class HookStats:
    """What this rank gave to collectives.

    Attributes:
        steps: backwards.
        sent_bytes: given, in all of them.
        dense_bytes: what would have been given without compression.
    """

    steps: int = 0
    sent_bytes: int = 0
    dense_bytes: int = 0

    @property
    def ratio(self) -> float:
        """Sent bytes as a fraction of the dense ones; 1 before anything was sent."""
        return self.sent_bytes / self.dense_bytes if self.dense_bytes else 1.0


class Compression(ABC):
    """Base of the hooks that compress.

    With error feedback, what a step did not send is this rank's *residual*: it is added to the gradients of
    the next step, so that over time everything is sent. A step whose average is not finite, which a
    GradScaler will not take, leaves it as it was; all ranks see the same average.

    Args:
        scaler: scales the losses whose gradients come here. Residuals follow when its scale changes.

    Attributes:
        stats: how much was sent.
    """

    def __init__(self, scaler: GradScaler | None = None) -> None:
        self.stats = HookStats()
        self._scaler = scaler
        self._residuals = Residuals()

    async def __call__(self, bucket: Bucket) -> None:
        """Leaves the average of all ranks in `bucket.buffer`; the same bits on all of them."""
        if bucket.index == 0:
            self.stats.steps += 1
            scale = 1.0 if self._scaler is None else self._scaler.get_scale()
            if scale != self._residuals.scale:
                await asyncio.to_thread(follow, partial(self._residuals.rescale, scale))
        self.stats.dense_bytes += bucket.buffer.nbytes
        self.stats.sent_bytes += await self._reduce(bucket)

    @abstractmethod
    async def _reduce(self, bucket: Bucket) -> int:
        """Averages; returns how many bytes this rank gave."""

    def residuals(self) -> dict[str, Array]:
        """What this rank has still to send, by name of the parameter; without the scale of its scaler."""
        return self._residuals.arrays()

    def state_dict(self) -> dict[str, Any]:
        """The hook's state as plain values, to go on from a checkpoint. Each rank has its own residuals."""
        return {"residuals": self._residuals.arrays()}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Takes over what `state_dict()` returned.

        Raises:
            ArgumentError: it is not the state of such a hook.
        """
        wanted = set(self.state_dict())
        if set(state_dict) != wanted:
            raise ArgumentError(
                f"the state of {type(self).__name__} has {', '.join(sorted(wanted))}, "
                f"this has {', '.join(map(str, state_dict)) or 'nothing'}"
            )
        self._load(state_dict)

    def _load(self, state_dict: Mapping[str, Any]) -> None:
        self._residuals.load(state_dict["residuals"])


async def aside(bucket: Bucket, fn: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Runs a computation over a bucket: in a thread if it could keep the event loop from its work."""
    if bucket.buffer.nbytes <= _AT_ONCE:
        return fn(*args, **kwargs)
    return await asyncio.to_thread(follow, partial(fn, *args, **kwargs))
