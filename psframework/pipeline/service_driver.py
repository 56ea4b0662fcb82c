"""A driver on a service, as its clients call it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from psframework.errors import ArgumentError, ContextClosed, DeadlineExceeded, Evicted, PeerLost
from psframework.membership.view import MemberState
from psframework.pipeline.blueprint import Blueprint
from psframework.pipeline.driver_host import ATTACH, DRIVE
from psframework.pipeline.outcome import Outcome
from psframework.pipeline.placement import Cluster, natural
from psframework.pipeline.ranks import ASK_SECONDS
from psframework.pipeline.spec import PipelineOptions
from psframework.pipeline.trees import Tree, arrays_of
from psframework.rref.handle import RRef

ROLE: Final = "pipeline"
HERE: Final = "here"
_GRACE_SECONDS = 10 * ASK_SECONDS
"""A driver notices a deadline itself, and says who was late; this is for a driver that does not answer."""


def driver_service(cluster: Cluster, options: PipelineOptions) -> str | None:
    """The service that drives a pipe; None: this process.

    Raises:
        ArgumentError: no such service drives pipes; or there is none, and the pipe has a name.
    """
    wanted = options.driver
    there = [each.name for each in cluster.members(ROLE) if each.state is not MemberState.STALLED]
    there.sort(key=natural)
    if options.name and (wanted == HERE or not there):
        raise ArgumentError(
            f"name={options.name!r}: others find a pipeline on a service that drives it: start one with `psf "
            "serve pipeline`"
        )
    if wanted is None:
        return there[0] if there else None
    if wanted != HERE and wanted not in there:
        raise ArgumentError(
            f"driver={wanted!r} is no pipeline service that answers; there are {', '.join(there) or 'none'}: "
            f'start one with `psf serve pipeline`, or pass driver="{HERE}"'
        )
    return None if wanted == HERE else wanted


class ServiceDriver:
    """Calls a driver that is elsewhere. Made by `open` or `attach`.

    Args:
        host: the driver.
        service: where it is.
        timeout: seconds of a call that brings none, until the driver has told its own.
        owned: whether closing ends the pipe; else it only lets go of it.

    Attributes:
        services: that hold stages, as far as is known here.
    """

    def __init__(self, host: RRef, service: str, timeout: float, owned: bool) -> None:
        self._host, self._service, self._timeout, self._owned = host, service, timeout, owned
        self.services: tuple[str, ...] = ()
        self._closed = False

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
        """Has a service open a pipe; see `Driver.open`.

        Raises:
            NameTaken: the service drives another one of that name.
        """
        told = replace(options, loss=None, optimizer=None, balance=None, ties=())  # the blueprint has them
        seconds = timeout + _GRACE_SECONDS
        host = cluster.remote(service, DRIVE, (blueprint, told, seed, timeout), timeout=seconds)
        return await cls(host, service, options.timeout, True)._opened(seconds)

    @classmethod
    async def attach(
        cls, cluster: Cluster, service: str, options: PipelineOptions, timeout: float
    ) -> ServiceDriver:
        """Finds a pipe by its name.

        Raises:
            NotRegistered: the service drives none of that name.
        """
        host = cluster.remote(service, ATTACH, (options.name,), timeout=timeout)
        return await cls(host, service, options.timeout, False)._opened(timeout)

    async def _opened(self, seconds: float) -> ServiceDriver:
        try:
            self.services = await self._host.rpc_async(timeout=seconds).services()
            self._timeout = await self._host.rpc_async(timeout=seconds).timeout()
        except BaseException:
            self._host.close()
            raise
        return self

    async def step(self, x: Tree, y: Tree, timeout: float | None = None, *, update: bool = True) -> Outcome:
        """See `Driver`; so the others.

        Raises:
            PeerLost: also if the driver's service is lost.
            ContextClosed: it was closed, or let go of.
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
        self._closed = True
        try:
            if self._owned:
                await self._host.rpc_async(timeout=_GRACE_SECONDS).close()
        except (PeerLost, ContextClosed, DeadlineExceeded, Evicted):
            pass
        finally:
            self._host.close()

    async def _call(self, method: str, timeout: float | None, *args: Any) -> Any:
        if self._closed:
            raise ContextClosed("this pipeline is closed")
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
