"""What a `Cluster` is made of, and how it ends: in order, or at once."""

from __future__ import annotations

import asyncio
import logging
from contextlib import AsyncExitStack
from typing import Protocol

from psframework.cluster.directory import Directory
from psframework.cluster.remoting import Remoting
from psframework.collective.client import Groups
from psframework.dist_autograd.client import DistAutograd
from psframework.errors import ArgumentError, ContextClosed, DeadlineExceeded, PsfError
from psframework.membership.client import Membership
from psframework.rpc.deadline import Deadline
from psframework.rpc.functions.context import current_caller, runs_for_a_call
from psframework.rpc.functions.remote_client import Function, Remote
from psframework.rpc.registry import name_of
from psframework.rpc.session.agent import Agent
from psframework.rref.client import RRefs

_GOODBYE_SECONDS = 1.0  # for telling the coordinator, if it is there
_LOOK_SECONDS = 0.01

log = logging.getLogger(__name__)


class Closable(Protocol):
    """A handle that ends with its cluster: a parameter server; later a table, a pipeline."""

    async def close(self) -> None: ...


class Connection:
    """This process's part in a cluster, without what users call.

    Args:
        membership: this process as a member.
        agent: its calls.
        job: the scope of the names of models.
        timeout: default of waits in seconds.
        remoting: what it does for others.

    Attributes:
        membership, agent, job: as given; lower packages see the cluster through these.
        rrefs: its references.
        dist: its distributed-autograd contexts.
        groups: its process groups.
    """

    def __init__(
        self, membership: Membership, agent: Agent, job: str, timeout: float, remoting: Remoting
    ) -> None:
        self.membership = membership
        self.agent = agent
        self.job = job
        self._timeout = timeout
        self._remoting = remoting
        directory = Directory(membership)
        self._remote = Remote(agent, directory)
        self.rrefs = RRefs(agent, self._remote, directory, remoting.functions)
        self.dist = DistAutograd(agent, self._remote, directory)
        self.groups = Groups(agent, self._remote, directory, membership)
        membership.on_lost(self.rrefs.lost)
        membership.on_lost(self.dist.lost)
        membership.on_lost(self.groups.lost)
        membership.on_evicted(self.rrefs.evicted)
        membership.on_evicted(self.groups.evicted)
        self._handles: list[Closable] = []
        self._loop = asyncio.get_running_loop()
        self._closed = False
        self._hurries = False  # somebody wants the end without waiting, after it began in order
        self._ended = asyncio.Event()
        self._finishing = False  # closed, but what runs here for others may still call

    async def open(self, stack: AsyncExitStack) -> None:
        """Opens references, contexts and groups; `stack` closes them."""
        for part in (self.rrefs, self.dist, self.groups):
            await stack.enter_async_context(part)

    @property
    def name(self) -> str:
        """This member's name."""
        return self.membership.member.name

    @property
    def role(self) -> str:
        """This member's role."""
        return self.membership.member.role

    async def shutdown(self, graceful: bool = True, timeout: float = 30.0) -> None:
        """Ends this connection. Never waits for members to come or to leave, nor for those that are gone.

        Args:
            graceful: first waits for the calls that this member made or serves, and until owners have
                confirmed that it refers to nothing of theirs, and ends what it takes part in, so that nobody
                waits for it; else whatever is open ends with PeerLost.
            timeout: seconds for that.

        Raises:
            ArgumentError: this is a remote function: only the program that connected may end its connection.
            DeadlineExceeded: it has left, but not everything was answered in time; names the members that did
                not answer.
        """
        if runs_for_a_call():
            raise ArgumentError(
                "shutdown() in a remote function would end its process under the calls that it serves, this "
                "one too: return, and let the program that connected leave"
            )
        late = await self._end(timeout if graceful else None, wait=graceful)
        if late:
            raise DeadlineExceeded(f"{self.name} has left, but was not done after {timeout:g} s: {late}")

    def check_caller(self, function: Function) -> None:
        """Whether the member that the running code works for may have `function` called here.

        Args:
            function: a registered function or class, or its name, that came as a value.

        Raises:
            PermissionDenied: by the function's roles, or by the rules here; with a line for auditors.
            NotRegistered: there is none.
        """
        if runs_for_a_call():
            self._remoting.executor.allow(name_of(function), current_caller().peer)

    async def leave(self, *, in_order: bool) -> None:
        """What leaving the block of `psf.connect` does: `shutdown`, with a warning in the place of an error.

        Args:
            in_order: whether the block came to its end; if not, no call is waited for.
        """
        late = await self._end(self._timeout, wait=in_order)
        if late:
            log.warning("%s has left, but was not done after %g s: %s", self.name, self._timeout, late)

    async def _end(self, timeout: float | None, *, wait: bool) -> str:
        """Ends everything, at most `timeout` seconds for the orderly part; returns what was late, as text."""
        if self._closed:
            self._hurries |= not wait
            await self._ended.wait()
            return ""
        self._closed = True
        late = ""
        groups = asyncio.ensure_future(self.groups.close())  # first: the other ranks shall not wait
        try:
            await asyncio.sleep(0)
            if timeout is not None:
                end = Deadline.after(timeout)
                await groups
                late = await self._finish(end) if wait else ""
                async with asyncio.timeout(max(end.remaining(), _GOODBYE_SECONDS)):
                    await self._close_handles()
        except TimeoutError:
            log.warning("%s: not everything was closed within %g s", self.name, timeout)
        finally:
            await self._remote.close()
            await self.agent.close()
            await asyncio.gather(groups, return_exceptions=True)
            try:
                await self.membership.leave(_GOODBYE_SECONDS if timeout is not None else 0.1)
            finally:
                self._ended.set()
        return late

    async def _finish(self, end: Deadline) -> str:
        """Waits for the calls made and served here, and lets go of all references; returns what was late."""
        self._finishing = True
        try:
            while (late := self._open_calls()) and not (end.expired or self._hurries):  # noqa: ASYNC110 (they are of many)
                await asyncio.sleep(_LOOK_SECONDS)
        finally:
            self._finishing = False
        await self.dist.close(end.remaining())
        problems = await self.rrefs.close(end.remaining())
        if end.expired:  # else they are values that others still hold: told in the log, and nobody's fault
            late += problems
        return "; ".join(late)

    def _open_calls(self) -> list[str]:
        made = [f"{count} call(s) to {name}" for name, count in self._remote.outstanding().items()]
        served = {peer.info.name: peer.statistics()["served"] for peer in self.agent.peers}
        texts = made + [f"{count} call(s) of {name}" for name, count in served.items() if count]
        running = self._remoting.executor.running
        return texts or ([f"{running} function(s) that run here"] if running else [])

    async def _close_handles(self) -> None:
        while self._handles:
            handle = self._handles.pop()
            try:
                await handle.close()
            except PsfError as error:
                log.warning("%s: closing %r: %s", self.name, handle, error)

    def _check_open(self) -> None:
        if asyncio._get_running_loop() is not self._loop:
            raise ArgumentError(
                f"{self.name} was connected on another event loop or thread: make calls in `async def` "
                "functions, or by asyncio.run_coroutine_threadsafe from a thread"
            )
        if self._closed and not (self._finishing and runs_for_a_call()):
            raise ContextClosed(f"{self.name} has left the cluster: connect again")
