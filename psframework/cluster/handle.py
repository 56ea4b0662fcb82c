"""What `psf.connect` hands out: this process's place in a cluster."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol

from psframework.errors import ArgumentError, ContextClosed, PsfError
from psframework.membership.client import Membership
from psframework.membership.view import Member
from psframework.nn.module import Module
from psframework.optim.optimizer import Optimizer
from psframework.parameter_server.client import open_parameter_server
from psframework.parameter_server.handle import ParameterServer
from psframework.parameter_server.partition import Partitioner
from psframework.parameter_server.policy import Policy
from psframework.rpc.agent import Agent
from psframework.rpc.deadline import Deadline

_GOODBYE_SECONDS = 1.0  # for telling the coordinator, if it is there

log = logging.getLogger(__name__)
_current: ContextVar[Cluster | None] = ContextVar("psframework_cluster", default=None)


class Closable(Protocol):
    """A handle that ends with its cluster: a parameter server; later a table, a group, a pipeline."""

    async def close(self) -> None: ...


class Cluster:
    """A live connection to a cluster; made by `psf.connect`, which also ends it.

    Args:
        membership: this process as a member.
        agent: its calls.
        job: the scope of the names of models.
        timeout: default of waits in seconds.

    Attributes:
        membership, agent, job: as given; lower packages see the cluster through these.
    """

    def __init__(self, membership: Membership, agent: Agent, job: str, timeout: float):
        self.membership = membership
        self.agent = agent
        self.job = job
        self._timeout = timeout
        self._handles: list[Closable] = []
        self._closed = False

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"{len(self.membership.members())} members"
        return f"<Cluster: {self.name} in job {self.job!r}, {state}>"

    @property
    def name(self) -> str:
        """This member's name."""
        return self.membership.member.name

    @property
    def role(self) -> str:
        """This member's role."""
        return self.membership.member.role

    def members(self, role: str | None = None, job: str | None = None) -> tuple[Member, ...]:
        """The live members as far as this process knows, in the order in which they joined.

        Args:
            role: only those of this role, such as "parameter-server".
            job: only those of this job; services belong to job "".
        """
        return self.membership.members(role, job)

    async def barrier(self, name: str, n: int, timeout: float | None = None) -> None:
        """Waits until `n` members of this job entered the barrier `name`.

        Args:
            name: of the barrier, within the job.
            n: how many must come, this one included.
            timeout: seconds; None: the timeout given to `connect`.

        Raises:
            RendezvousTimeout: naming who came and how many are missing.
        """
        self._check_open()
        await self.membership.barrier(name, n, Deadline.after(self._timeout if timeout is None else timeout))

    async def parameter_server(
        self,
        model: Module,
        name: str = "model",
        optimizer: Optimizer | None = None,
        consistency: Policy | None = None,
        *,
        reader: bool = False,
        keep: bool = False,
        partitioner: Partitioner | None = None,
    ) -> ParameterServer:
        """Registers `model` with the parameter server; on return it holds the server's parameters.

        The first registrant's values win.

        Args:
            model: its parameters become views into one arena for each dtype.
            name: of the model, within the job.
            optimizer: what the server updates with, such as `optim.Adam(lr=1e-3)`.
            consistency: `psf.BSP()` (the default), `psf.ASP()` or `psf.SSP(staleness=2)`.
            reader: only pulls; never counted, never waited for.
            keep: the model outlives its job.
            partitioner: how parameters are spread over the shards; the first registrant decides.

        Raises:
            ModelMismatch: another shape, dtype, rule or policy is registered under the name.
            RendezvousTimeout: the cluster has no parameter server.
        """
        self._check_open()
        handle = await open_parameter_server(
            self,
            model,
            name=name,
            optimizer=optimizer,
            consistency=consistency,
            reader=reader,
            keep=keep,
            partitioner=partitioner,
            timeout=self._timeout,
        )
        self._handles.append(handle)
        return handle

    async def shutdown(self, graceful: bool = True, timeout: float = 30.0) -> None:
        """Ends this connection, without waiting for other members or raising for those that are gone.

        Args:
            graceful: first ends what this member takes part in, so that nobody waits for it.
            timeout: seconds for that.
        """
        if self._closed:
            return
        self._closed = True
        try:
            if graceful:
                async with asyncio.timeout(timeout):
                    await self._close_handles()
        except TimeoutError:
            log.warning("%s: not everything was closed within %g s", self.name, timeout)
        finally:
            await self.agent.close()
            await self.membership.leave(_GOODBYE_SECONDS if graceful else 0.1)

    async def _close_handles(self) -> None:
        while self._handles:
            handle = self._handles.pop()
            try:
                await handle.close()
            except PsfError as error:
                log.warning("%s: closing %r: %s", self.name, handle, error)

    def _check_open(self) -> None:
        if self._closed:
            raise ContextClosed(f"{self.name} has left the cluster: connect again")


@contextmanager
def current(cluster: Cluster) -> Iterator[None]:
    """Makes `cluster` the one that `current_cluster` finds, in this task and those that it starts."""
    before = _current.get()
    _current.set(cluster)
    try:
        yield
    finally:
        _current.set(before)


def current_cluster() -> Cluster:
    """The cluster that the running code belongs to: the body of `psf.connect`, and what it calls.

    Raises:
        ArgumentError: there is none.
    """
    cluster = _current.get()
    if cluster is None:
        raise ArgumentError("no cluster here: call this inside `async with psf.connect(...)`")
    return cluster
