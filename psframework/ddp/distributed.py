"""`psf.DistributedDataParallel`: a model on every rank, trained as by one process with all batches."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator, Hashable, Iterator
from contextlib import contextmanager
from functools import partial
from os import PathLike
from time import perf_counter
from types import TracebackType
from typing import Any, Self

import numpy as np

from psframework import backend
from psframework.autograd import Drawing
from psframework.backend import Array
from psframework.collective.descriptor import Operation
from psframework.collective.group import ProcessGroup
from psframework.ddp import agree, timeline
from psframework.ddp.flight import Flight
from psframework.ddp.hooks import Hook, average
from psframework.ddp.join import Join
from psframework.ddp.line import Place, line_of
from psframework.ddp.module_buffers import ModuleBuffers
from psframework.ddp.neglect import Neglect
from psframework.ddp.reducer import Reducer, Roots
from psframework.ddp.sparse import average_tables, sparse_names
from psframework.ddp.step import Attended, Departure, Direct, Span, Step
from psframework.ddp.wrapped import give_back, take_over
from psframework.errors import ArgumentError, ContextClosed
from psframework.nn import Module
from psframework.rpc.compute import compute


class DistributedDataParallel:
    """A model that every rank of a group trains on its own batches, with the same parameters everywhere.

        ddp = await psf.DistributedDataParallel(model, group)
        for x, y in batches:                       # of this rank
            loss = F.cross_entropy(ddp(x), y)
            await ddp.backward(loss)               # .grad is now the mean of all ranks
            optimizer.step()
            optimizer.zero_grad()

    Awaiting it compares the models of all ranks, then gives all of them rank 0's parameters and buffers.

    Gradients lie in *buckets*, `.grad` is a view into one: it changes with the next backward. While backward
    computes, buckets that are full are averaged. At the end of each, buffers (running statistics) become
    those of rank 0.

    Attributes of the model are found here too: `ddp.parameters()`, `ddp.state_dict()`, `ddp.train()`.

    Wrappers of several models may share a group, if their backwards are called in one order on all ranks.

    Args:
        module: the model, with its parameters where they shall be trained; the same on all ranks.
        group: the ranks.
        bucket_cap_mb: size at which a bucket is averaged, in MiB; the first one is closed at 1 MiB.
        hook: averages buckets instead of the group, mostly compressed: one of `psf.ddp.hooks`, or your own.
        find_unused_parameters: parameters may take no part in a loss. Those that took part on some rank get
            the mean over all ranks; those that took part on none keep their `grad` as it is. Costs a small
            reduction in each backward. Without it such a backward raises on all ranks, and names them.
        static_graph: the same parameters take part in every backward: with `find_unused_parameters` it is
            found out once.
    """

    joining: Join | None
    _neglect: Neglect

    def __init__(
        self,
        module: Module,
        group: ProcessGroup,
        bucket_cap_mb: float = 25,
        hook: Hook | None = None,
        find_unused_parameters: bool = False,
        static_graph: bool = False,
    ) -> None:
        agree.check(module, group, bucket_cap_mb, hook)
        self.module, self.group = module, group
        self.joining = None
        self.told = False
        self._options = {
            "bucket_cap_mb": bucket_cap_mb, "find_unused_parameters": find_unused_parameters,
            "static_graph": static_graph, "hook": type(hook).__name__,
        }  # fmt: skip
        self._hook = hook
        sparse = sparse_names(module)
        self._reducer = Reducer(
            dict(module.named_parameters()), group, int(bucket_cap_mb * (1 << 20)), sparse=sparse,
            unused=find_unused_parameters, static=static_graph,
        )  # fmt: skip
        self._buffers = ModuleBuffers(module)
        self._rebuilt = False
        self._ready = self.closed = self._quiet = False
        self._line = line_of(group)
        self._step: Step | None = None
        self._task: asyncio.Task[None] | None = None
        self._forward = Span("forward", 0.0)

    # Life

    def __await__(self) -> Generator[Any, None, Self]:
        return self._open().__await__()

    async def _open(self) -> Self:
        if self.closed:
            raise ContextClosed("this DistributedDataParallel was closed")
        if not self._ready:
            try:
                take_over(self, self._reducer)
            except ArgumentError as error:
                self.group.decline(f"DistributedDataParallel: {error}")  # the others wait to compare models
                raise
            try:
                await agree.agree(self.group, self.module, self._options)
                if not self._reducer.parameters:
                    raise ArgumentError(
                        "no parameter of this model requires grad: there is nothing to average"
                    )
                await agree.spread(self.group, self.module)
                self._reducer.settle_in(await self._arenas())
                if not all(isinstance(each.buffer, np.ndarray) for each in self._reducer.buckets):
                    self._hook = self._hook or average  # of a device's arrays; the group stages them
            except BaseException:
                give_back(self.module)
                raise
            self._neglect = Neglect(self._reducer.parameters)
            self._ready = True
        return self

    async def _arenas(self) -> dict[Hashable, Array]:
        arenas = {}
        for kind, (length, like) in self._reducer.arenas().items():
            if backend.device_of(like) == backend.CPU:
                arenas[kind] = await self.group.empty(length, like.dtype)
            else:
                arenas[kind] = backend.xp(like).zeros(length, like.dtype)
        return arenas

    async def __aenter__(self) -> Self:
        return await self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """The model goes on without buckets; gradients stay. The group stays open."""
        self.closed = True
        await self.landed()
        self._reducer.release()

    # Training

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The model's forward."""
        self._check("forward")
        self._neglect.forward_begins()
        self._forward = Span("forward", perf_counter())
        result = self.module(*args, **kwargs)
        self._forward.ended = perf_counter()
        self._neglect.forward_ended()
        return result

    async def backward(self, loss: Roots, seed: Any = None, retain_graph: bool = False) -> None:
        """Adds the gradients of `loss` to `grad`, and makes `grad` the mean over all ranks. Collective.

        It computes in the process's compute thread. Several losses of one graph can be given at once, or one
        after the other with `retain_graph`.

        Cancelling it does not stop it: the other ranks wait for it, and so does the next one here.

        Args:
            loss: a tensor, or several.
            seed: gradient of the loss, or a list of them; 1 by default.
            retain_graph: keep the graph for another backward.

        Raises:
            CollectiveMismatch: the backward failed on some rank, or a parameter took no part in the loss; on
                every rank, naming it. All gradients are dropped, and training can go on. (The rank whose own
                code failed gets that error instead.)
            PeerLost, DeadlineExceeded: a rank died, or did not come; the group is lost, see `shrink()`.
            AutogradError: as of `Tensor.backward`.
        """
        self._check("backward")
        self._neglect.backward()
        waits = not self._line.empty or (self._step is not None and not self._step.flight.over)
        steps = self._in_turn(self._line.join(), self._quiet, self.joining, loss, seed, retain_graph)
        if waits or self._attended or self.joining is not None:
            await self.whole(steps)  # it comes to its turn also if the caller is cancelled before
        else:
            await steps

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Backwards inside only add up gradients on this rank; the next one outside averages the sums.

        Use it on all ranks alike.
        """
        before, self._quiet = self._quiet, True
        try:
            yield
        finally:
            self._quiet = before

    def join(self, divide_by_initial_world_size: bool = True) -> Join:
        """A block for uneven inputs: who leaves it takes part in the others' backwards until all have left.

        Afterwards all ranks have the parameters and buffers of a rank that ran to the end (an optimizer's
        state is not sent). All ranks have to use it for the same backwards. Each of these costs a small
        reduction more. An error that leaves the block is told to the other ranks.

            async with ddp.join():
                for x, y in batches: ...

        Args:
            divide_by_initial_world_size: the mean is the sum divided by the number of all ranks, so that each
                sample counts the same as before (torch's default); False divides by the number of ranks that
                still take part.
        """
        self._check("join")
        return Join(self, divide_by_initial_world_size)

    def timeline(self, path: str | PathLike[str] | None = None) -> Drawing:
        """A picture of the last backward: what computed when, which bucket was under way when.

        Args:
            path: of an SVG file that is written.

        Raises:
            ArgumentError: no backward has ended yet, or the path ends in another suffix than .svg.
        """
        if self._step is None or not self._step.spent or not self._step.flight.over:
            raise ArgumentError("timeline: no backward has ended yet")
        return timeline.draw(self._forward, self._step, self._reducer.buckets, path)

    # For `join`

    async def landed(self) -> None:
        """A backward that nobody waits for any more has ended."""
        while self._task is not None:
            task = self._task
            await asyncio.wait([task])
            if self._task is task:
                self._task = None
        if self._step is not None:
            await self._step.flight.wait()

    async def whole(self, steps: Coroutine[Any, Any, None]) -> None:
        """Several collectives that belong together: all of them are done, also if the caller is cancelled."""
        task = self._task = asyncio.get_running_loop().create_task(steps)
        try:
            await asyncio.shield(task)
        finally:
            if task.done() and self._task is task:
                self._task = None
            del task  # its error's traceback has this frame

    async def _in_turn(self, place: Place, quiet: bool, joining: Join | None, *args: Any) -> None:
        async with place:
            if self._step is not None:
                await self._step.flight.wait()
            if quiet:
                await compute(self._reducer.run_alone, *args)
                return
            if joining is not None:
                await joining.announce(True)
            flight = await self._begin(self._reducer.run, *args)
            if self._attended:
                await flight.wait()
        await flight.ended()

    @property
    def _attended(self) -> bool:
        """Whether a task on the loop begins collectives of a backward, after it has computed too."""
        return self._hook is not None or bool(self._reducer.sparse)

    async def shadow(self) -> None:
        """Takes part in a backward of the others, with nothing to give."""
        await (await self._begin(self._reducer.shadow)).ended()

    async def spread(self, src: int) -> None:
        """Gives all ranks the model of one."""
        self._reducer.drop()
        await agree.spread(self.group, self.module, src)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "module" not in self.__dict__:
            raise AttributeError(name)
        return getattr(self.module, name)

    def __repr__(self) -> str:
        return f"DistributedDataParallel({self.module!r})"

    def _check(self, what: str) -> None:
        if not self._ready:
            raise ArgumentError(
                f"{what} of a DistributedDataParallel that was not awaited: "
                "ddp = await psf.DistributedDataParallel(model, group)"
            )
        if self.closed:
            raise ContextClosed(f"{what} of a DistributedDataParallel that was closed")

    async def _begin(self, run: Callable[..., None], *args: Any) -> Flight:
        """Computes a backward; its collectives have begun then, unless it is attended."""
        step = self._step = self._new_step()
        flight = step.flight
        try:
            await compute(_claimed, flight, run, step, *args)
        except BaseException as problem:
            if flight.claim():  # it has not begun, and the other ranks wait for it
                self._make_up(problem, step, run, *args)
            raise
        return flight

    def _make_up(self, problem: BaseException, step: Step, run: Callable[..., None], *args: Any) -> None:
        if isinstance(problem, asyncio.CancelledError):
            self._task = asyncio.get_running_loop().create_task(compute(run, step, *args))
        else:
            with step:
                step.flight.refuse(f"the backward can't begin: {type(problem).__name__}: {problem}")

    def _new_step(self) -> Step:
        reducer, joining = self._reducer, self.joining
        root, scale = (0, 1.0) if joining is None else (joining.active[0], joining.scale)
        whole = joining is None or len(joining.active) == self.group.size

        def over(error: BaseException | None) -> None:
            self.told = error is not None
            reducer.ended(step, error)

        flight = Flight(self.group, over)
        departure: Departure

        def after() -> None:
            self._after(flight, root)

        if self._attended:
            tables = [reducer.parameters[number] for number in reducer.sparse]
            sparse = partial(average_tables, tables, self.group) if tables else None
            departure = Attended(flight, scale, after, self._hook, sparse)
        else:
            departure = Direct(flight, scale, after)
        step = Step(flight, departure, whole)
        return step

    def _after(self, flight: Flight, root: int) -> None:
        """What follows the buckets: buffers, and once the order that buckets get."""
        mine = self.group.rank == root
        if len(self._buffers):
            flat = self._buffers.pack()
            if mine:
                flight.begin(Operation.BROADCAST, flat, None, root=root)
            else:
                flight.begin(
                    Operation.BROADCAST, None, flat, root=root, then=lambda: self._buffers.unpack(flat)
                )
        if not self._rebuilt:
            self._exchange_order(flight, root, mine)

    def _exchange_order(self, flight: Flight, root: int, mine: bool) -> None:
        reducer = self._reducer
        order = np.array(reducer.order if mine else range(len(reducer.parameters)), np.int64)

        def then() -> None:
            self._rebuilt, reducer.coming = True, order.tolist()

        send, receive = (order, None) if mine else (None, order)
        flight.begin(Operation.BROADCAST, send, receive, root=root, then=then)


def _claimed(flight: Flight, run: Callable[..., None], *args: Any) -> None:
    if flight.claim():
        run(*args)
