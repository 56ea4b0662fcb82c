"""`psf.ProcessGroup`: collectives between the members of a group, as futures."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Protocol, Self

import numpy as np
import numpy.typing as npt

from psframework import backend
from psframework.backend import Array
from psframework.collective import nccl
from psframework.collective.arrays import lend, name_of
from psframework.collective.calls import Calls, guard
from psframework.collective.descriptor import ANY, Descriptor, Operation
from psframework.collective.messages import Messages
from psframework.collective.operations import Collectives
from psframework.collective.ops import ReduceOp
from psframework.collective.post import Post
from psframework.collective.queue import Call, Queue
from psframework.collective.recorder import Recorder, Standing, compare
from psframework.collective.shm import SharedMemory
from psframework.collective.work import Flat, Transport
from psframework.errors import ContextClosed, DeadlineExceeded, PeerLost
from psframework.rpc.deadline import Deadline, boottime
from psframework.rpc.functions.future import Future

log = logging.getLogger(__name__)

TIMEOUT: Final = 300.0
"""Seconds that an operation may take if nobody says otherwise."""

_HEAR_SECONDS: Final = 1.0  # for the other ranks to come to a call that this one can't do
_ASK_SECONDS: Final = 1.0  # for the other ranks to say where they are, when a deadline has passed
_LAST: Final = 20  # operations that the log shows then


@dataclass(frozen=True, slots=True)
class Place:
    """Which rank of which group this is.

    Args:
        name: of the group, within its job.
        generation: which life of the group.
        rank: this member's.
        members: names of all, by rank.
        completed: operations that the group completed in its earlier generation, if it continues one.
        timeout: default of its operations in seconds; 0 for no limit.
    """

    name: str
    generation: int
    rank: int
    members: tuple[str, ...]
    completed: int = 0
    timeout: float = TIMEOUT


class Keeper(Protocol):
    """What a connection does for each of its groups. On the loop."""

    def ended(self, group: ProcessGroup, error: BaseException) -> None:
        """The group failed here: the other ranks have to hear of it, and its Post ends with `error`."""
        ...

    async def standings(self, group: ProcessGroup, deadline: Deadline) -> Mapping[int, Standing]:
        """Where the other ranks are, of those that answer in time; raises nothing."""
        ...

    async def leave(self, group: ProcessGroup) -> None:
        """This rank closes the group: the others hear of it, and after which operation; its Post ends."""
        ...

    async def shrink(self, group: ProcessGroup, deadline: Deadline) -> ProcessGroup:
        """The survivors' group."""
        ...

    async def split(
        self, group: ProcessGroup, color: int | None, key: int, deadline: Deadline
    ) -> ProcessGroup | None:
        """The group of those that said the same color."""
        ...


class ProcessGroup(Collectives):
    """A fixed set of members, each with a rank, that do the same operations in the same order.

        group = await cluster.process_group("train", world_size=4)
        await group.all_reduce(gradient, op=psf.ReduceOp.AVG)

    Each operation returns a psf.Future at once, and runs in call order; operations of different groups run
    side by side. Arrays are NumPy's or CuPy's, of any layout, or Tensors, whose `.data` is meant; they must
    not change until the future is done. Before data moves the ranks compare operation, shape and dtype.

    Every future may raise:
        CollectiveMismatch: ranks differ; on all of them, naming who called what. All find it in the same
            operation, so the group can be used on.
        DeadlineExceeded: naming the ranks that are missing, and the last operation each completed. It, and
            all below, end the group on all ranks: later calls raise the error again.
        PeerLost: a member died or closed the group. `shrink()` makes the survivors' group.
        ContextClosed: this rank closed it.

    A call that raises at once (ArgumentError) counts as an operation: the other ranks get CollectiveMismatch
    with its text. Cancelling a future does not stop the operation, for which others wait: it runs, also into
    an array that was to be written, and its result is dropped.

    `timeout` of an operation is in seconds, counted from the call; None: the group's; 0: no limit.

    Args:
        place: which rank of which group.
        transport: runs the operations.
        post: carries send and recv; None in a group of one.
        keeper: the connection.

    Attributes:
        rank, name, generation, members: of `place`; `members` are names by rank.
        size: number of ranks.
        closed: whether this rank closed it.
        recorder: its last operations.
    """

    def __init__(self, place: Place, transport: Transport, post: Post | None, keeper: Keeper) -> None:
        self.place = place
        self.name, self.generation, self.members = place.name, place.generation, place.members
        self.closed = False
        self._transport = transport
        self._keeper = keeper
        self._loop = asyncio.get_running_loop()
        self.recorder = Recorder(boottime)
        self.recorder.resume(place.completed)
        self._queue = Queue(transport, self.recorder, self._loop, self._failed, self._explain)
        self._queue.sequence = place.completed
        super().__init__(place.rank, len(place.members), Calls(self._queue, self._loop, place.timeout))
        self._messages = Messages(self.rank, place.members, post, self._broken)
        self._asking: set[asyncio.Task[BaseException]] = set()

    def __repr__(self) -> str:
        state = "closed" if self.closed else self.transport
        return f"<ProcessGroup {self.name!r}: rank {self.rank} of {self.size}, {state}>"

    @property
    def transport(self) -> str:
        """What carries its operations: "shm", "direct", "ring", "hierarchical", "central" or "alone"."""
        return self._transport.name

    @property
    def last_completed(self) -> int:
        """Number of the last operation that succeeded here; 0 before the first."""
        return self.recorder.last_completed

    @property
    def error(self) -> BaseException | None:
        """What the group ended with; None while it can be used."""
        return self._queue.error

    def send(self, a: object, dst: int, tag: int = 0, timeout: float | None = None) -> Future[None]:
        """Sends an array to one rank; not an operation of the group: the others take no part.

        Done when the array has arrived, whether or not it was asked for: two ranks may both send first.

        Args:
            a: any array; only read, and not to be changed until the future is done.
            dst: the receiver's rank; this one's own too.
            tag: arrays of one sender with one tag arrive in the order in which they were sent.

        Raises:
            ArgumentError: no array, no such rank, or the tag is negative.
        """
        return self._messages.send(lend(a), dst, tag, self._calls.deadline(timeout))

    def recv(self, src: int, tag: int = 0, timeout: float | None = None) -> Future[Array]:
        """The next array that rank `src` sends with this tag: a new one, on the host.

        When the deadline passes only this call fails, and the group lives on. A call that is late or
        cancelled takes nothing: the array is there for the next one.

        Args:
            src: the sender's rank.
            tag: which of its arrays.
        """
        return self._messages.recv(src, tag, self._calls.deadline(timeout))

    def begin(
        self,
        operation: Operation,
        send: Flat | None,
        receive: Flat | None,
        *,
        on_done: Callable[[BaseException | None], None],
        op: ReduceOp | None = None,
        root: int = ANY,
        unless: Callable[[], BaseException | None] | None = None,
    ) -> None:
        """One operation, called from any thread, without a future. For the layers above.

        Args:
            operation: which.
            send, receive: host arrays with one axis, as `Work` lists them; they must not change until done.
            on_done: called once with the error, or None; from any thread, and maybe before this returns. It
                has to be quick: the next operation starts after it.
            op, root: of the operation.
            unless: asked just before it would get its number: with an error that it answers, a
                CollectiveMismatch or one that ended the group, the operation ends without having begun. So
                one of several operations that belong together does not begin after one before it has failed.
        """
        array = receive if send is None else send
        dtype, shape = ("", ()) if array is None else (name_of(array.dtype), array.shape)
        work = self._calls.work(Descriptor(0, operation, dtype, shape, op, root), self._calls.deadline(None))
        work.send, work.receive = send, receive
        self._queue.put(Call(work, lambda work, error: on_done(error), guard(unless)))

    def decline(self, why: str, unless: Callable[[], BaseException | None] | None = None) -> None:
        """As `refuse`, from any thread and without a future; `unless` as of `begin`."""
        self._calls.decline(why, guard(unless))

    def refuse(self, why: str, timeout: float | None = None) -> Future[None]:
        """This rank can't do what the others are about to do: they all get CollectiveMismatch with `why`.

        It takes the place of one operation. The future fails with the same error.
        """
        return self._calls.bare(Descriptor(0, Operation.REFUSE, note=why), timeout)

    def abort(self, error: BaseException, after: int | None = None) -> None:
        """The group ends with `error`: for the connection, which heard of a loss. Any thread may call it.

        Args:
            error: what all pending and later operations get.
            after: the rank that is gone took part in all operations up to this one, which may end well.
        """
        if self._queue.abort(error, after):
            self._loop.call_soon_threadsafe(self._messages.end, error)

    async def empty(self, shape: int | Sequence[int], dtype: npt.DTypeLike = np.float32) -> npt.NDArray[Any]:
        """A *resident* array, of zeros: where all ranks share memory, its all-reduce is done in place.

        So is that of a contiguous part of it, if it is the same part on all ranks. All ranks call this alike,
        in the same order. The memory goes with the array and its views; it is not used by later groups.

        Raises:
            CollectiveMismatch: shape or dtype differ, or can't be on another rank.
            ResourceExhausted: on all ranks of a host whose first one has no memory for it.
        """
        return await self._calls.to_the_end(self._make(*self._empty(shape, dtype)))

    async def _make(self, shape: tuple[int, ...], dtype: str, agreed: Future[None]) -> npt.NDArray[Any]:
        await agreed
        if isinstance(self._transport, SharedMemory):
            return await self._transport.empty(shape, dtype)
        return np.zeros(shape, backend.dtype_from_name(dtype))

    async def use_nccl(self) -> None:
        """From now on NCCL carries CuPy arrays, without the host. All ranks call it, each on its own GPU.

        What NCCL does not have goes by way of the host as before: scatter, objects, the operations on bits,
        16-bit integers and booleans. In an operation over NCCL all ranks pass CuPy arrays. Several GPUs are
        unverified.

        Raises:
            ConfigurationError: no GPU, or CuPy without NCCL.
            CollectiveMismatch: that is so on another rank.
        """
        if self._calls.nccl is None:
            self._calls.nccl = await nccl.connect(self, self._transport)

    async def shrink(self, timeout: float | None = None) -> ProcessGroup:
        """The group of those members that are still alive; all of them call it. This one is over.

        Its `last_completed` is the last operation that all of them had completed; whatever came after has to
        be done again, from arrays as they were before.

        Raises:
            RendezvousTimeout: members that are alive did not call it in time; names them.
        """
        return await self._keeper.shrink(self, self._calls.deadline(timeout))

    async def split(
        self, color: int | None, key: int = 0, timeout: float | None = None
    ) -> ProcessGroup | None:
        """A group of all members that said the same `color`; all members call it. This one lives on.

        Args:
            color: which group; None for none.
            key: members are ranked by it, then by their rank in this group.

        Returns:
            The group; None for a member that said None.
        """
        return await self._keeper.split(self, *self._split(color, key, timeout))

    def report(self, last: int | None = None) -> str:
        """The flight recorder: one line for each of the last operations, with state and times.

        Args:
            last: how many; None for all that it remembers.
        """
        title = f"group {self.name!r}, generation {self.generation}, rank {self.rank} of {self.size}"
        return self.recorder.report(f"{title}, {self.transport}: {self.recorder.standing()}", last)

    async def close(self) -> None:
        """Leaves the group. Operations that did not end fail with ContextClosed here.

        On other ranks those that had ended on this rank end as here; all others fail with PeerLost. What a
        call of this rank raised at once they hear before, if they come to it soon.
        """
        if self.closed:
            return
        self.closed = True
        try:
            await self._calls.told(_HEAR_SECONDS)
        finally:
            await self._close()

    async def _close(self) -> None:
        who = f"rank {self.rank} ({self.members[self.rank]})"
        gone = PeerLost(f"{who} closed group {self.name!r}", peer=self.members[self.rank], rank=self.rank)
        error = ContextClosed(f"group {self.name!r} is closed")
        self._queue.close(error, gone)
        self._messages.end(error)
        for task in self._asking:
            task.cancel()
        try:
            await self._keeper.leave(self)
        finally:
            if self._calls.nccl is not None:
                await self._calls.nccl.close()
            await self._transport.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _failed(self, error: BaseException, known: bool) -> None:
        """An operation's error ended the group; in any thread."""
        self._loop.call_soon_threadsafe(self._tell, error, known)

    def _tell(self, error: BaseException, known: bool = False) -> None:
        self._messages.end(error)
        if not known:  # else ranks that are still in the operation before would be disturbed
            self._keeper.ended(self, error)

    def _broken(self, error: BaseException) -> None:
        """A send did not arrive, and the receiver waits for its number."""
        if self._queue.abort(error):
            self._tell(error)

    def _explain(self, late: DeadlineExceeded, then: Callable[[BaseException], None]) -> None:
        """Asks the other ranks where they are, so that the error names who is missing."""
        task = self._loop.create_task(self._ask(late))
        self._asking.add(task)

        def asked(task: asyncio.Task[BaseException]) -> None:
            self._asking.discard(task)
            then(late if task.cancelled() or task.exception() is not None else task.result())

        task.add_done_callback(asked)  # which is called too if the task is cancelled before it begins

    async def _ask(self, late: DeadlineExceeded) -> BaseException:
        try:
            async with asyncio.timeout(2 * _ASK_SECONDS):
                others = await self._keeper.standings(self, Deadline.after(_ASK_SECONDS))
            told = compare(dict(enumerate(self.members)), {**others, self.rank: self.recorder.standing()})
            error = DeadlineExceeded(f"{late}; {told}")
            log.error("%s\n%s", error, self.report(_LAST))
        except TimeoutError:
            log.error("%s; the other ranks do not say where they are", late)
            return late
        return error
