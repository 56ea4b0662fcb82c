"""One backward of one rank: how its buckets leave, and what is recorded of it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from time import perf_counter
from types import TracebackType
from typing import Any, Protocol, Self

import numpy as np
import numpy.typing as npt

from psframework.collective.descriptor import Operation
from psframework.collective.ops import ReduceOp
from psframework.ddp.bucket import Bucket
from psframework.ddp.flight import Flight
from psframework.ddp.hooks import Hook, run_hook


@dataclass(slots=True)
class Span:
    """Something that took time, in seconds on `perf_counter`.

    Attributes:
        label: what.
        began: when.
        ended: when; 0 while it goes on.
    """

    label: str
    began: float
    ended: float = 0.0


class Departure(Protocol):
    """How full buckets leave. In the compute thread."""

    def launch(self, bucket: Bucket, span: Span) -> None:
        """Begins to average a bucket; they come in bucket order."""
        ...

    def close(self) -> None:
        """No more come: what follows the buckets may leave."""
        ...


class Step:
    """One backward. As a context manager it runs the part that computes, in the compute thread.

    Args:
        flight: its collectives.
        departure: how its buckets leave.
        whole: whether all ranks have something to give.

    Attributes:
        whole: as given.
        mine: for each parameter, whether it took part on this rank; None if that is not exchanged.
        used: the same for any rank, once the collectives have landed; None if all had to.
        spent: computation.
        flown: buckets on their way.
    """

    def __init__(self, flight: Flight, departure: Departure, whole: bool = True) -> None:
        self.flight, self.whole = flight, whole
        self.mine: npt.NDArray[np.uint8] | None = None
        self.used: npt.NDArray[np.uint8] | None = None
        self.spent: list[Span] = []
        self.flown: list[Span] = []
        self._departure: Departure | None = departure

    def launch(self, bucket: Bucket) -> None:
        """A bucket is full."""
        span = Span(f"{bucket.index}", perf_counter())
        self.flown.append(span)
        assert self._departure is not None
        self._departure.launch(bucket, span)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if error is not None:
            self.flight.fail(error)
        departure, self._departure = self._departure, None  # it refers to whoever keeps this step
        try:
            assert departure is not None
            departure.close()
        except Exception as problem:
            self.flight.fail(problem)
        self.flight.land()
        return True


class Direct:
    """Buckets are averaged by the group, begun from the compute thread.

    Args:
        flight: the collectives.
        scale: what the average of all ranks is multiplied by.
        after: begins what follows the buckets.
    """

    def __init__(self, flight: Flight, scale: float, after: Callable[[], None]) -> None:
        self._flight, self._scale, self._after = flight, scale, after

    def launch(self, bucket: Bucket, span: Span) -> None:
        buffer, scale = bucket.buffer, self._scale

        def then() -> None:
            if scale != 1:
                np.multiply(buffer, scale, out=buffer)
            span.ended = perf_counter()

        self._flight.begin(Operation.ALL_REDUCE, buffer, buffer, ReduceOp.AVG, then=then)

    def close(self) -> None:
        if self._flight.error is None:
            self._after()


class Attended:
    """A task on the loop sees the buckets off: with a communication hook, or sparse gradients after them.

    Args:
        flight: the collectives.
        scale: as in `Direct`.
        after: as in `Direct`.
        hook: averages each bucket; None leaves that to the group.
        sparse: averages gradients that are in no bucket, after the buckets, with `scale`; None without any.
    """

    def __init__(
        self,
        flight: Flight,
        scale: float,
        after: Callable[[], None],
        hook: Hook | None,
        sparse: Callable[[float], Awaitable[None]] | None,
    ) -> None:
        self._flight, self._scale, self._after = flight, scale, after
        self._hook, self._sparse = hook, sparse
        self._direct = Direct(flight, scale, _nothing)
        self._loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[tuple[Bucket, Span] | None] = asyncio.Queue()
        flight.hold()
        self.task = self._loop.create_task(self._attend())

    def launch(self, bucket: Bucket, span: Span) -> None:
        if self._hook is None:
            self._direct.launch(bucket, span)
        else:
            self._put((bucket, span))

    def close(self) -> None:
        self._put(None)

    def _put(self, item: Any) -> None:
        self._loop.call_soon_threadsafe(self._queue.put_nowait, item)

    async def _attend(self) -> None:
        try:
            while (item := await self._queue.get()) is not None:
                bucket, span = item
                if self._hook is not None and self._flight.error is None:
                    await run_hook(self._hook, bucket)
                    if self._scale != 1:
                        bucket.buffer *= self._scale
                    span.ended = perf_counter()
            if self._sparse is not None and self._flight.error is None:
                await self._sparse(self._scale)
            if self._hook is not None:
                # A hook may fail after its last collective: the others hear of it here, in the same step.
                self._flight.begin(Operation.BARRIER, None, None)
            if self._flight.error is None:
                self._after()
        except BaseException as error:
            self._flight.fail(error)
            if not isinstance(error, Exception):
                raise
        finally:
            self._flight.land()


def _nothing() -> None:
    """Nothing follows."""
