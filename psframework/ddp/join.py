"""Uneven inputs: a rank that has run out takes part in the others' backwards until all have run out."""

from __future__ import annotations

from collections.abc import Coroutine
from types import TracebackType
from typing import Any, Protocol, Self

import numpy as np

from psframework.errors import ArgumentError


class Joins(Protocol):
    """What `join` needs of the DistributedDataParallel."""

    joining: Join | None
    told: bool  # the error at hand, if there is one, is known to all ranks

    @property
    def group(self) -> Any: ...
    async def landed(self) -> None: ...
    async def whole(self, steps: Coroutine[Any, Any, None]) -> None: ...
    async def shadow(self) -> None: ...
    async def spread(self, src: int) -> None: ...


class Join:
    """The block of `ddp.join()`.

    Args:
        ddp: whose backwards.
        divide_by_initial_world_size: see `DistributedDataParallel.join`.

    Attributes:
        active: ranks that take part in the backward at hand.
    """

    def __init__(self, ddp: Joins, divide_by_initial_world_size: bool) -> None:
        self._ddp = ddp
        self._whole = divide_by_initial_world_size
        self._last: list[int] = []
        self.active: list[int] = []

    @property
    def scale(self) -> float:
        """What an average over all ranks is multiplied by."""
        return 1.0 if self._whole else float(self._ddp.group.size) / len(self.active)

    async def announce(self, takes_part: bool) -> bool:
        """Before each backward: ranks tell each other who takes part; False if nobody does."""
        group = self._ddp.group
        flags = np.zeros(group.size, np.uint8)
        flags[group.rank] = takes_part
        self._ddp.told = True  # if this fails
        await group.all_reduce(flags)
        self._ddp.told = False
        self.active = [rank for rank, flag in enumerate(flags) if flag]
        self._last = self.active or self._last
        return bool(self.active)

    async def __aenter__(self) -> Self:
        if self._ddp.joining is not None:
            raise ArgumentError("join() inside join(): one block is enough")
        self._ddp.joining, self._ddp.told = self, False
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        leaving = False
        try:
            await self._ddp.landed()
            if error is None:
                leaving = True
                await self._ddp.whole(self._leave())
            else:
                self._tell(error)
        finally:
            if not leaving:
                self._ddp.joining = None

    async def _leave(self) -> None:
        """Takes part as long as there is a rank that has inputs."""
        try:
            while await self.announce(False):
                await self._ddp.shadow()
            if 0 < len(self._last) < self._ddp.group.size:
                await self._ddp.spread(self._last[0])
        finally:
            self._ddp.joining = None

    def _tell(self, error: BaseException) -> None:
        """The others wait for this rank's next backward, which will not come: they get an error."""
        if not self._ddp.told:
            note = f"the block of join() failed with {type(error).__name__}: {error}"
            self._ddp.group.decline(note)
