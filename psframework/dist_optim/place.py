"""The processes that a distributed optimizer has parameters in: this one, and others."""

from __future__ import annotations

import asyncio
from typing import Any, Protocol

from psframework.backend import follow
from psframework.dist_autograd import passenger
from psframework.dist_optim.owner import Items, OwnersOptimizer, Spec, owners_optimizer
from psframework.rref.handle import RRef


class Place(Protocol):
    """A process with parameters."""

    @property
    def name(self) -> str:
        """Of the member, for people."""

    async def made(self) -> None:
        """Waits until there is an optimizer; raises why there will be none."""

    async def call(self, method: str, *args: Any, timeout: float | None) -> Any:
        """Calls a method of the OwnersOptimizer there, which runs in a thread."""


class Here:
    """This process.

    Args:
        spec: the update rule.
        items: what lives here.
        name: of this member.
    """

    def __init__(self, spec: Spec, items: Items, name: str) -> None:
        self.name = name
        self._spec = spec
        self._items = items
        self._optimizer: OwnersOptimizer | None = None
        if not any(isinstance(item, RRef) for _, item in items):
            self._optimizer = OwnersOptimizer(spec, items)

    async def made(self) -> None:
        """Waits for values that are still being made."""
        if self._optimizer is None:
            made = await owners_optimizer(self._spec, self._items)
            # Another step, which waited too, may have been first.
            self._optimizer = self._optimizer or made
            self._items = ()

    async def call(self, method: str, *args: Any, timeout: float | None) -> Any:
        """In a thread of this process, which can't be stopped: the time is not limited."""
        return await asyncio.to_thread(follow, getattr(self._optimizer, method), *args)


class Elsewhere:
    """Another process.

    Args:
        spec: the update rule.
        items: RRefs to what lives there.
    """

    def __init__(self, spec: Spec, items: Items) -> None:
        first: RRef = items[0][1]
        self.name = first.owner_name()
        # It may wait for its items for as long as these take; a step doesn't wait longer than it should.
        args = dict(spec), list(items)
        with passenger.outside():
            self._optimizer = first.calls.remote(first, owners_optimizer, args, timeout=0)

    async def made(self) -> None:
        """Waits for the values, too."""
        await self._optimizer.confirmed_by_owner()

    async def call(self, method: str, *args: Any, timeout: float | None) -> Any:
        """By a call."""
        return await getattr(self._optimizer.rpc_async(timeout), method)(*args)
