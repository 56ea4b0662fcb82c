"""What `psf.connect` hands out: this process's place in a cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Unpack

from psframework.cluster.connection import Connection
from psframework.cluster.ranks import environment_of_ranks
from psframework.cluster.remoting import Remoting
from psframework.collective.group import ProcessGroup
from psframework.collective.options import GroupOptions
from psframework.dist_autograd.handle import DistContext
from psframework.membership.client import Membership
from psframework.membership.view import Member
from psframework.nn.module import Module
from psframework.optim.optimizer import Optimizer
from psframework.parameter_server.client import open_parameter_server
from psframework.parameter_server.handle import ParameterServer
from psframework.parameter_server.partition import Partitioner
from psframework.parameter_server.policy import Policy
from psframework.pipeline.client import Pipeline, open_pipeline
from psframework.pipeline.options import FurtherOptions, options_of
from psframework.proto.v1.remote_pb2 import DescribeReply
from psframework.rpc.deadline import Deadline
from psframework.rpc.functions.context import current_caller, runs_for_a_call
from psframework.rpc.functions.future import Future
from psframework.rpc.functions.pickled import STREAM, Pickled, called
from psframework.rpc.functions.remote_client import Function
from psframework.rpc.functions.remote_stream import RemoteStream
from psframework.rpc.session.agent import Agent
from psframework.rref.handle import RRef


class Cluster(Connection):
    """A live connection to a cluster; made by `psf.connect`, which also ends it.

    Args:
        membership: this process as a member.
        agent: its calls.
        job: the scope of the names of models.
        timeout: default of waits in seconds.
        remoting: what it does for others.

    Attributes:
        membership, agent, job: as given; lower packages see the cluster through these.
        rrefs, dist, groups: its references, distributed-autograd contexts and process groups; see `open`.
    """

    def __init__(
        self, membership: Membership, agent: Agent, job: str, timeout: float, remoting: Remoting
    ) -> None:
        super().__init__(membership, agent, job, timeout, remoting)
        remoting.cluster = self

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"{len(self.membership.members())} members"
        return f"<Cluster: {self.name} in job {self.job!r}, {state}>"

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

        The first registrant's values win. In a remote function the name belongs to the job of whoever
        called it.

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
            job=self.job_of_names(),
            optimizer=optimizer,
            consistency=consistency,
            reader=reader,
            keep=keep,
            partitioner=partitioner,
            timeout=self._timeout,
        )
        self._handles.append(handle)
        return handle

    async def process_group(
        self,
        name: str = "default",
        world_size: int | None = None,
        *,
        rank: int | None = None,
        deterministic: bool = False,
        timeout: float | None = None,
        algorithm: str | None = None,
    ) -> ProcessGroup:
        """Makes a group of `world_size` members, once so many have asked for it; on all of them it returns.

            group = await cluster.process_group("train", world_size=4)
            await group.all_reduce(gradient, op=psf.ReduceOp.AVG)

        Asked again while the group lives, it returns the same one. After `close`, or a failure, the group of
        that name is a new one. In a remote function the name belongs to the job of whoever called it.

        Args:
            name: of the group, within the job.
            world_size: how many members; None: WORLD_SIZE, as `psf run` sets it.
            rank: this member's, given by all or by none; None: RANK, if the group has WORLD_SIZE members;
                else the members' names are numbered in natural order.
            deterministic: results are bitwise the same over all transports.
            timeout: default of the group's operations in seconds; None: 300; 0: no limit.
            algorithm: for tests and benchmarks: "shm", "direct", "ring", "hierarchical" or "central"; None:
                whichever is best.

        Raises:
            RendezvousTimeout: naming who came and how many did not, within the timeout given to `connect`.
            ArgumentError: members ask for different sizes or the same rank; on all of them.
            PeerLost: a member was lost meanwhile, or can't be reached.
        """
        self._check_open()
        size, own = environment_of_ranks(world_size)
        options = GroupOptions(size, own if rank is None else rank, deterministic, algorithm or "", timeout)
        return await self.groups.open(self.job_of_names(), name, options, Deadline.after(self._timeout))

    async def pipeline(
        self,
        model: Any,
        *,
        loss: Callable[..., Any] | str | None = None,
        schedule: str = "1f1b",
        microbatches: int = 8,
        optimizer: Optimizer | None = None,
        stages: int | None = None,
        virtual_stages: int = 1,
        **further: Unpack[FurtherOptions],
    ) -> Pipeline:
        """Places a model's stages on services, on which it trains and answers.

            pipe = await cluster.pipeline([(Encoder, (64,)), (Decoder, (64,))], loss=F.cross_entropy,
                                          optimizer=optim.SGD(lr=0.1), microbatches=8)
            loss = await pipe.step(x, y)

        Args:
            model: stages in their order: (class, args), Modules or `pipeline.Stage`s; or an nn.Sequential.
                None: attaches to the pipeline that runs under `name`, which closing then leaves as it is.
            loss: a registered function of (outputs, targets): the mean over the rows of a micro-batch.
            schedule: "gpipe", "1f1b", "interleaved" or "zb-h1".
            microbatches: into how many a batch is cut.
            optimizer: a description, such as `optim.SGD(lr=0.1)`; None: parameters stay as they are.
            stages: into how many an nn.Sequential is cut.
            virtual_stages: stages of each service; several need schedule="interleaved".
            **further: on, commit_every, timeout, balance, ties, precision, max_norm, recompute, infer_rows,
                driver, name: see `PipelineOptions`.

        Raises:
            TypeError: there is no such option.
            ArgumentError: the stages or options can't be right.
            RendezvousTimeout: there are not enough stage services.
            NameTaken, NotRegistered: a pipeline of that name runs already; or none does.
        """
        self._check_open()
        given = {
            "loss": loss,
            "schedule": schedule,
            "microbatches": microbatches,
            "optimizer": optimizer,
            "virtual_stages": virtual_stages,
        }
        pipe = await open_pipeline(self, model, stages, options_of({**given, **further}), self._timeout)
        self._handles.append(pipe)
        return pipe

    def job_of_names(self) -> str:
        """The scope of names that the running code gives: services work for the jobs of their callers."""
        return current_caller().peer.job if runs_for_a_call() and not self.job else self.job
