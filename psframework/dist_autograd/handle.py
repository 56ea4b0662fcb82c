"""What `cluster.dist_autograd()` gives: one context, for as long as the `async with` block runs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from os import PathLike
from types import TracebackType
from typing import Any, Literal, Protocol, Self

from psframework.autograd import engine
from psframework.autograd.engine import Gradient
from psframework.autograd.picture import Drawing
from psframework.autograd.tensor import Tensor
from psframework.dist_autograd import passenger
from psframework.dist_autograd.backward import Backward
from psframework.dist_autograd.context import Context, Contexts
from psframework.dist_autograd.draw import draw
from psframework.dist_autograd.ids import ContextId
from psframework.errors import (
    ArgumentError,
    AutogradError,
    ContextClosed,
    ContextMismatch,
    DeadlineExceeded,
)
from psframework.proto.v1 import dist_autograd_pb2 as pb
from psframework.rpc.deadline import Deadline
from psframework.rpc.functions.remote_client import deadline

Mode = Literal["smart", "fast"]


class Home(Protocol):
    """The connection that a context belongs to."""

    @property
    def name(self) -> str: ...
    @property
    def incarnation(self) -> int: ...
    @property
    def contexts(self) -> Contexts: ...
    def incarnation_of(self, name: str) -> int: ...
    def outline_of(
        self, name: str, id: ContextId, limit: int, deadline: Deadline
    ) -> asyncio.Future[pb.OutlineReply]: ...
    def open(self) -> Context: ...
    def backward(self, id: pb.BackwardId) -> Backward: ...
    def release(self, id: ContextId, why: str = "has ended", error: Exception | None = None) -> None: ...


class DistContext:
    """A distributed-autograd context: every call made inside carries it, also from tasks and threads.

        async with cluster.dist_autograd() as ctx:
            loss = F.cross_entropy(await net.rpc_async().forward(x), y)
            await ctx.backward([loss])

    Tensors that require grad keep their graph across calls inside it; outside of one they arrive as
    constants.

    Args:
        home: the connection.
    """

    def __init__(self, home: Home) -> None:
        self._home = home
        self._context: Context | None = None
        self._token: Any = None
        self._turn = asyncio.Lock()

    async def __aenter__(self) -> Self:
        if self._context is not None:
            raise ContextClosed("a context is entered once: call cluster.dist_autograd() for another")
        self._context = self._home.open()
        self._token = passenger.enter(self._home, self._context)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        passenger.leave(self._token)
        self._home.release(self._open.id, "has ended with its block: call backward, step and draw inside it")

    def __repr__(self) -> str:
        context = self._context
        return f"<DistContext {context.id if context else 'not entered'}>"

    @property
    def id(self) -> ContextId:
        """Its name, the same in all processes."""
        return self._open.id

    @property
    def backwards(self) -> int:
        """How many backwards have begun."""
        return self._open.backwards

    @contextmanager
    def inside(self) -> Iterator[None]:
        """The block, and the tasks that it starts, belong to this context, in whatever task it runs."""
        self._open.check()
        token = passenger.enter(self._home, self._open)
        try:
            yield
        finally:
            passenger.leave(token)

    async def backward(
        self,
        roots: Tensor | Sequence[Tensor],
        mode: Mode = "smart",
        retain_graph: bool = False,
        timeout: float | None = None,
    ) -> None:
        """Gradients of the roots with respect to every leaf below them, in every process; none of `.grad`.

        They add up in this context: `gradients()` has those of this process, `DistributedOptimizer.step`
        uses all. It returns when every process that takes part has finished.

        Args:
            roots: one scalar tensor of this process, or several.
            mode: "smart" finds out first what takes part, with one round trip for each hop; "fast" takes it
                that every message of the context does, and raises if one gets no gradient.
            retain_graph: keep the graph for another backward.
            timeout: seconds; None: 60; 0: no limit.

        Raises:
            AutogradError: a root does not require grad, or is no scalar; the graph was freed, or changed in
                place; in the mode "fast", the messages that take no part, by name.
            ContextMismatch: a tensor came by a message of another context.
            RemoteError: what a rule or a hook in another process raised.
            PeerLost: a process that takes part died.
            ContextClosed: the context has ended, or an earlier backward in it failed. After an error it has,
                unless "smart" found the graph to be freed, or of another context, before anything ran.
        """
        if mode not in ("smart", "fast"):
            raise ArgumentError(f"mode={mode!r}: 'smart' or 'fast'")
        until, context = deadline(timeout), self._open
        async with self._one_at_a_time(until):
            context.check()
            gradients, heap = engine.start(_scalars(roots), None)
            context.backwards += 1
            id = pb.BackwardId(number=context.backwards, fast=mode == "fast", retain=retain_graph)
            id.context.creator, id.context.counter = context.id
            backward = self._home.backward(id)
            timer, began = asyncio.timeout(until.seconds()), id.fast
            try:
                async with timer:
                    if not id.fast:
                        await backward.discover_from(gradients, until)
                    began = True
                    backward.start(gradients, heap)
                    await backward.engage(until)
                    if id.fast and not backward.waits:  # else others may only wait for these
                        await backward.survey(until)
                _check_done(backward)
            except BaseException as error:
                failure = error if isinstance(error, Exception) else ContextClosed("its caller was cancelled")
                if timer.expired():
                    failure = DeadlineExceeded("its deadline passed")
                if began or not isinstance(error, AutogradError | ContextMismatch):
                    self._home.release(context.id, error=failure)
                if timer.expired():
                    raise DeadlineExceeded(f"the backward of {context} was not done in time") from error
                raise

    @asynccontextmanager
    async def _one_at_a_time(self, until: Deadline) -> AsyncIterator[None]:
        """The block runs when no other backward of this context does."""
        try:
            async with asyncio.timeout(until.seconds()):
                await self._turn.acquire()
        except TimeoutError:
            raise DeadlineExceeded(f"another backward of {self._open} still ran at the deadline") from None
        try:
            yield
        finally:
            self._turn.release()

    def gradients(self) -> dict[Tensor, Gradient]:
        """{leaf of this process: gradient}: arrays of the leaf's shape and dtype, or SparseRows.

        Raises:
            ContextClosed: the context has ended, or a backward in it failed.
        """
        context: Any = self._open
        context.check()
        return dict(context.gradients)

    async def draw(
        self,
        path: str | PathLike[str] | None = "graph.svg",
        *,
        roots: Tensor | Sequence[Tensor] | None = None,
        names: Mapping[str, Tensor] | Iterable[tuple[str, Tensor]] = (),
        limit: int = 60,
        timeout: float | None = None,
    ) -> Drawing:
        """Draw the graph of this context over all processes that take part.

        Each process has a lane, data flows down, yellow are messages with tensors: arrows lead from the
        `send` node of the one that sent it to the `recv` node of the other. After a backward without
        `retain_graph` there are only messages left to be drawn, dashed, in the order of their time.
        A process that can't be asked is in the picture with the reason.

        Args:
            path: the SVG file to write; None writes none.
            roots: tensors of this process to draw with what led to them; None for all that is alive and came
                from messages of this context.
            names: of this process's leaves: `model.named_parameters()`, or {"x": x}.
            limit: of a process with more operations and leaves, those between the same messages are one box.
            timeout: seconds; None: 60; 0: no limit.

        Raises:
            ArgumentError: nothing to draw: no tensor that requires grad has travelled; or a path that ends in
                another suffix than .svg.
            ContextClosed: the context has ended, or a backward in it failed.
        """
        context = self._open
        context.check()
        return await draw(self._home, context, path, roots, names, limit, deadline(timeout))

    @property
    def _open(self) -> Context:
        if self._context is None:
            raise ContextClosed("the context was not entered: async with cluster.dist_autograd() as ctx")
        return self._context


def gradients() -> dict[Tensor, Gradient]:
    """Gradients in this process of the context that the running code belongs to, also in a function that was
    called from inside it: as `DistContext.gradients`.

    Raises:
        ContextClosed: there is none, it has ended, or a backward in it failed.
    """
    context: Any = passenger.current()
    if context is None:
        raise ContextClosed(
            "no context here: call this inside one, or in what is called from inside, and not under no_grad"
        )
    context.check()
    return dict(context.gradients)


def _scalars(roots: Tensor | Iterable[Tensor]) -> list[Tensor]:
    listed = [roots] if isinstance(roots, Tensor) else list(roots)
    for root in listed:
        if not isinstance(root, Tensor):
            raise ArgumentError(f"a root must be a Tensor of this process, not {type(root).__name__}")
        if not root.requires_grad:
            raise AutogradError(
                "a root does not require grad: results of calls outside of this context are constants, as is "
                "what no_grad or detach made; compute the loss inside `async with cluster.dist_autograd()`"
            )
        if root.size != 1:
            raise AutogradError(f"a root of shape {root.shape} is no scalar: reduce it, as with .sum()")
    if not listed:
        raise ArgumentError("no roots: pass the loss, as in ctx.backward([loss])")
    return listed


def _check_done(backward: Backward) -> None:
    """Raises if a message never got its gradient."""
    waits = backward.waits if backward.id.fast else list(map(str, reversed(backward.part.waits)))
    if waits:
        shown = "; ".join(waits[:10]) + ("; ..." if len(waits) > 10 else "")
        raise AutogradError(
            f"no gradient reached {len(waits)} message(s) of this context: {shown}. The mode 'fast' needs "
            "every result to be used in the loss: use mode='smart'"
        )
