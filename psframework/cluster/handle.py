"""What `psf.connect` hands out: this process's place in a cluster."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from psframework.cluster.directory import Directory
from psframework.cluster.remoting import Remoting
from psframework.dist_autograd.client import DistAutograd
from psframework.dist_autograd.handle import DistContext
from psframework.errors import ArgumentError, ContextClosed, DeadlineExceeded, PsfError
from psframework.membership.client import Membership
from psframework.membership.view import Member
from psframework.nn.module import Module
from psframework.optim.optimizer import Optimizer
from psframework.parameter_server.client import open_parameter_server
from psframework.parameter_server.handle import ParameterServer
from psframework.parameter_server.partition import Partitioner
from psframework.parameter_server.policy import Policy
from psframework.proto.v1.remote_pb2 import DescribeReply
from psframework.rpc.deadline import Deadline
from psframework.rpc.functions.context import runs_for_a_call
from psframework.rpc.functions.future import Future
from psframework.rpc.functions.pickled import STREAM, Pickled, called
from psframework.rpc.functions.remote_client import Function, Remote
from psframework.rpc.functions.remote_stream import RemoteStream
from psframework.rpc.session.agent import Agent
from psframework.rref.client import RRefs
from psframework.rref.handle import RRef

_GOODBYE_SECONDS = 1.0  # for telling the coordinator, if it is there
_LOOK_SECONDS = 0.01

log = logging.getLogger(__name__)


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
        remoting: what it does for others.

    Attributes:
        membership, agent, job: as given; lower packages see the cluster through these.
        rrefs: its references; to be entered before it is used.
        dist: its distributed-autograd contexts; to be entered too.
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
        membership.on_lost(self.rrefs.lost)
        membership.on_lost(self.dist.lost)
        membership.on_evicted(self.rrefs.evicted)
        remoting.cluster = self
        self._handles: list[Closable] = []
        self._loop = asyncio.get_running_loop()
        self._closed = False
        self._hurries = False  # somebody wants the end without waiting, after it began in order
        self._ended = asyncio.Event()
        self._finishing = False  # closed, but what runs here for others may still call

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

    def rpc_async(
        self,
        to: Any,
        fn: Function | Pickled,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        timeout: float | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> Future[Any]:
        """Calls a function of a member: copies the arguments, sends, and returns at once.

            total = await cluster.rpc_async("worker-1", add, args=(x, y))

        Args:
            to: a name, a member, or an RRef, whose owner is meant.
            fn: a function with `@psf.remote`, the name it is registered under, or a `psf.pickled` one.
            args: positional arguments.
            kwargs: arguments with names.
            timeout: seconds for queueing, transfer and execution together; None: 60; 0: no limit. A call that
                a remote function makes never outlasts the call that the function runs for.
            metadata: what the function finds in `psf.current_caller().metadata`.

        Returns:
            The result, as a future: awaitable again and again, and cancelling it cancels the remote work.

        Raises:
            NotRegistered: `fn` is no registered function.
            TypeError: an argument can't travel; the message names its type and the path to it.
            ContextClosed: this member has left the cluster.
        """
        self._check_open()
        return self._remote.rpc_async(to, *called(fn, args), kwargs, timeout, metadata)

    def rpc_all(
        self,
        to: Iterable[Any],
        fn: Function | Pickled,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        timeout: float | None = None,
        *,
        metadata: Mapping[str, str] | None = None,
        return_exceptions: bool = False,
    ) -> Future[list[Any]]:
        """Calls a function of many members at once: `await cluster.rpc_all(["worker-0", "worker-1"], step)`.

        Args:
            to: names, members or RRefs.
            fn, args, kwargs, timeout, metadata: as for `rpc_async`.
            return_exceptions: puts exceptions among the results, instead of raising the first.

        Returns:
            The results, in the order of `to`, once all have ended. If some fail, the error of the first of
            them in that order is raised; its notes tell of the others. Cancelling it cancels all.
        """
        self._check_open()
        return self._remote.rpc_all(
            to, *called(fn, args), kwargs, timeout, metadata=metadata, return_exceptions=return_exceptions
        )

    def rpc_stream(
        self,
        to: Any,
        fn: Function | Pickled,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        timeout: float | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> RemoteStream:
        """Calls a generator of a member, which begins at once and runs ahead of its consumer a little.

            async for part in cluster.rpc_stream("worker-0", generator): ...

        Leaving the loop early closes the generator. An error in it is raised after the items before it.

        Args:
            to, fn, args, kwargs, metadata: as for `rpc_async`.
            timeout: seconds that each item may take; None: 60; 0: no limit.
        """
        self._check_open()
        return self._remote.rpc_stream(to, *called(fn, args, STREAM), kwargs, timeout, metadata)

    def remote(
        self,
        to: Any,
        fn: Function | Pickled,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        timeout: float | None = None,
    ) -> RRef:
        """Calls a function, or makes an object of a class, and leaves the result there: returns at once.

            net = cluster.remote("worker-1", Net, args=(64,))
            out = await net.rpc_async().forward(x)

        Args:
            to: a name, a member, or an RRef, whose owner is meant.
            fn: a function or class with `@psf.remote`, or the name it is registered under.
            args: positional arguments.
            kwargs: arguments with names.
            timeout: seconds that it may take; None: 60; 0: no limit. What goes wrong is raised by each use.

        Raises:
            NotRegistered, PeerLost, TypeError: `fn`, `to` or an argument can't be right.
            ContextClosed: this member has left the cluster.
        """
        self._check_open()
        return self.rrefs.remote(to, *called(fn, args), kwargs, timeout)

    def rref(self, value: Any) -> RRef:
        """A reference to a value of this process, to be passed to others; the value is not copied."""
        self._check_open()
        return self.rrefs.rref(value)

    def dist_autograd(self) -> DistContext:
        """A context in which gradients flow through calls: `async with cluster.dist_autograd() as ctx: ...`

        Tensors that require grad keep their graph when they travel in calls made inside it, and
        `await ctx.backward([loss])` differentiates through all processes that took part.

        Raises:
            ContextClosed: this member has left the cluster.
        """
        self._check_open()
        return DistContext(self.dist)

    async def describe(self, member: Any, timeout: float | None = None) -> DescribeReply:
        """What a member offers to be called, with figures of what was called (`psf call NAME --list`).

        Args:
            member: its name.
            timeout: seconds; None: 60.
        """
        self._check_open()
        return await self._remote.describe(member, timeout)

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
        try:
            if timeout is not None:
                end = Deadline.after(timeout)
                late = await self._finish(end) if wait else ""
                async with asyncio.timeout(max(end.remaining(), _GOODBYE_SECONDS)):
                    await self._close_handles()
        except TimeoutError:
            log.warning("%s: not everything was closed within %g s", self.name, timeout)
        finally:
            await self._remote.close()
            await self.agent.close()
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
