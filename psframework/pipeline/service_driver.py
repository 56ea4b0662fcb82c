"""A driver on a service: the object that drives there, and what calls it from here."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from psframework.errors import ArgumentError, ContextClosed, PeerLost
from psframework.membership.view import MemberState
from psframework.pipeline.blueprint import Blueprint
from psframework.pipeline.driver import Driver
from psframework.pipeline.outcome import Outcome
from psframework.pipeline.placement import Cluster, natural
from psframework.pipeline.ranks import ASK_SECONDS
from psframework.pipeline.spec import PipelineOptions
from psframework.pipeline.trees import Tree, arrays_of
from psframework.rpc.current import current
from psframework.rpc.functions.context import nobodys
from psframework.rpc.registry import remote
from psframework.rref.handle import RRef

ROLE: Final = "pipeline"
DRIVE: Final = "psframework.pipeline.drive"
HERE: Final = "here"
_GRACE_SECONDS = 10 * ASK_SECONDS
"""A driver notices a deadline itself, and says who was late; this is for a driver that does not answer."""


def driver_service(cluster: Cluster, wanted: str | None) -> str | None:
    """The service that drives a pipe; None: this process.

    Args:
        cluster: whose members they are.
        wanted: its name, or "here"; None: the first that answers, if there is one.

    Raises:
        ArgumentError: no such service drives pipes.
    """
    there = [each.name for each in cluster.members(ROLE) if each.state is not MemberState.STALLED]
    there.sort(key=natural)
    if wanted is None:
        return there[0] if there else None
    if wanted != HERE and wanted not in there:
        raise ArgumentError(
            f"driver={wanted!r} is no pipeline service that answers; there are {', '.join(there) or 'none'}: "
            f'start one with `psf serve pipeline`, or pass driver="{HERE}"'
        )
    return None if wanted == HERE else wanted


@remote(name="psframework.pipeline.DriverHost")
class DriverHost:
    """A driver on its service. It lives for as long as a client refers to it; then its stages are freed.

    Args:
        driver: of the pipe.
    """

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        loop = asyncio.get_running_loop()
        weakref.finalize(self, _close_soon, loop, driver).atexit = False

    async def services(self) -> tuple[str, ...]:
        """Names of those that hold stages."""
        return self._driver.services

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
        """Frees the stages."""
        await self._driver.close()


@remote(name=DRIVE)
async def drive(blueprint: Blueprint, options: PipelineOptions, seed: int, timeout: float) -> DriverHost:
    """Opens a pipe, and drives it here. What it answers lives as long as somebody refers to it."""
    return DriverHost(await Driver.open(current.get(), blueprint, options, seed, timeout))


def _close_soon(loop: asyncio.AbstractEventLoop, driver: Driver) -> None:
    """Nobody refers to a driver any more; called in any thread."""
    if not loop.is_closed():
        loop.call_soon_threadsafe(lambda: loop.create_task(driver.close(), context=nobodys()))


class ServiceDriver:
    """Calls a driver that is elsewhere. Made by `open`.

    Args:
        host: the driver.
        service: where it is.
        services: that hold stages.
        timeout: seconds of a call that brings none.
    """

    def __init__(self, host: RRef, service: str, services: tuple[str, ...], timeout: float) -> None:
        self._host, self._service, self._timeout = host, service, timeout
        self.services = services

    @classmethod
    async def open(
        cls,
        cluster: Cluster,
        service: str,
        blueprint: Blueprint,
        options: PipelineOptions,
        seed: int,
        timeout: float,
    ) -> ServiceDriver:
        """Has a service open a pipe; see `Driver.open`."""
        told = replace(options, loss=None, optimizer=None, balance=None, ties=())  # the blueprint has them
        args = (blueprint, told, seed, timeout)
        host = cluster.remote(service, DRIVE, args, timeout=timeout + _GRACE_SECONDS)
        try:
            services = await host.rpc_async(timeout=timeout + _GRACE_SECONDS).services()
        except BaseException:
            host.close()
            raise
        return cls(host, service, services, options.timeout)

    async def step(self, x: Tree, y: Tree, timeout: float | None = None, *, update: bool = True) -> Outcome:
        """See `Driver`; so the others.

        Raises:
            PeerLost: also if the driver's service is lost.
        """
        found: Outcome = await self._call("step", timeout, arrays_of(x), arrays_of(y), timeout, update)
        self.services = found.services
        return found

    async def evaluate(self, x: Tree, y: Tree, timeout: float | None = None) -> float:
        """The loss of a batch."""
        loss: float = await self._call("evaluate", timeout, arrays_of(x), arrays_of(y), timeout)
        return loss

    async def infer(self, x: Tree, timeout: float | None = None) -> Tree:
        """What the model answers."""
        return await self._call("infer", timeout, arrays_of(x), timeout)

    async def state_dict(self, timeout: float | None = None) -> dict[str, Any]:
        """Parameters and buffers."""
        state: dict[str, Any] = await self._call("state_dict", timeout, timeout)
        return state

    async def load_state_dict(self, state: Mapping[str, Any], timeout: float | None = None) -> None:
        """Gives all stages the values of a state."""
        await self._call("load_state_dict", timeout, arrays_of(dict(state)), timeout)

    async def statistics(self) -> dict[str, int]:
        """Counts."""
        counts: dict[str, int] = await self._call("statistics", None)
        return counts

    async def close(self) -> None:
        """Frees the stages; if the driver does not answer, when it notices that nobody refers to it."""
        try:
            await self._host.rpc_async(timeout=_GRACE_SECONDS).close()
        except (PeerLost, ContextClosed):
            pass
        finally:
            self._host.close()

    async def _call(self, method: str, timeout: float | None, *args: Any) -> Any:
        seconds = self._timeout if timeout is None else timeout
        try:
            proxy = self._host.rpc_async(timeout=seconds + _GRACE_SECONDS if seconds else 0)
            return await getattr(proxy, method)(*args)
        except PeerLost as error:
            if error.peer != self._service:
                raise
            raise PeerLost(
                f"{self._service}, which drove this pipeline, is lost: open the pipeline anew",
                peer=error.peer,
                reason=error.reason,
            ) from error
