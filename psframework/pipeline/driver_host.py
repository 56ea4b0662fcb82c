"""What a service that drives pipes does for clients: it opens, drives and closes them."""

from __future__ import annotations

import weakref
from typing import Any, Final

from psframework.errors import NameTaken, NotRegistered
from psframework.pipeline.blueprint import Blueprint
from psframework.pipeline.driver import Driver
from psframework.pipeline.finalizers import closed_with
from psframework.pipeline.outcome import Outcome
from psframework.pipeline.servicer import check_allowed
from psframework.pipeline.spec import PipelineOptions
from psframework.pipeline.trees import Tree
from psframework.rpc.current import current
from psframework.rpc.functions.context import current_caller
from psframework.rpc.registry import remote

DRIVE: Final = "psframework.pipeline.drive"
ATTACH: Final = "psframework.pipeline.attach"

_named: Final[weakref.WeakValueDictionary[tuple[str, str, str], DriverHost]] = weakref.WeakValueDictionary()
"""(member, job, name) -> the pipe that clients find by its name."""


@remote(name="psframework.pipeline.DriverHost")
class DriverHost:
    """A driver on its service. It lives for as long as a client refers to it; then its stages are freed.

    Args:
        driver: of the pipe.
        key: under which clients find it.
    """

    def __init__(self, driver: Driver, key: tuple[str, str, str]) -> None:
        self._driver, self._key = driver, key
        closed_with(self, driver)

    async def services(self) -> tuple[str, ...]:
        """Names of those that hold stages."""
        return self._driver.services

    async def timeout(self) -> float:
        """Seconds of a call that brings none; 0: no limit."""
        return self._driver.timeout

    async def step(self, x: Tree, y: Tree, timeout: float | None, update: bool) -> Outcome:
        """See `Driver`; so the others."""
        return await self._driver.step(x, y, timeout, update=update)

    async def evaluate(self, x: Tree, y: Tree, timeout: float | None) -> float:
        """The loss of a batch."""
        return await self._driver.evaluate(x, y, timeout)

    async def infer(self, x: Tree, timeout: float | None) -> Tree:
        """What the model answers."""
        return await self._driver.infer(x, timeout)

    async def state_dict(self, timeout: float | None) -> dict[str, Any]:
        """Parameters and buffers."""
        return await self._driver.state_dict(timeout)

    async def load_state_dict(self, state: dict[str, Any], timeout: float | None) -> None:
        """Gives all stages the values of a state."""
        await self._driver.load_state_dict(state, timeout)

    async def statistics(self) -> dict[str, int]:
        """Counts."""
        return await self._driver.statistics()

    async def close(self) -> None:
        """Frees the stages, and the name."""
        if _named.get(self._key) is self:
            del _named[self._key]
        await self._driver.close()


@remote(name=DRIVE)
async def drive(blueprint: Blueprint, options: PipelineOptions, seed: int, timeout: float) -> DriverHost:
    """Opens a pipe, and drives it here. What it answers lives as long as somebody refers to it.

    Raises:
        NameTaken: this service drives another one of that name.
        PermissionDenied: a class of a stage, or the loss, is not for the caller.
    """
    check_allowed(current.get(), blueprint.stages)
    key = _key(options.name)
    taken = NameTaken(
        f"{key[0]} already drives a pipeline named {options.name!r}: close that, or attach to it"
    )
    if options.name and key in _named:
        raise taken
    host = DriverHost(await Driver.open(current.get(), blueprint, options, seed, timeout), key)
    if options.name and _named.setdefault(key, host) is not host:
        await host.close()
        raise taken
    return host


@remote(name=ATTACH)
async def attach(name: str) -> DriverHost:
    """A pipe that is driven here for the caller's job.

    Raises:
        NotRegistered: there is none of that name.
    """
    key = _key(name)
    if key not in _named:
        raise NotRegistered(f"{key[0]} drives no pipeline named {name!r} for job {key[1]!r}")
    return _named[key]


def _key(name: str) -> tuple[str, str, str]:
    return current.get().name, current_caller().peer.job, name
