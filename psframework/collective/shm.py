"""The shared-memory transport: ranks of one host exchange arrays through one segment, without messages."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from google.protobuf.message import DecodeError

from psframework.collective import cores
from psframework.collective.board import LINE_BYTES, Board
from psframework.collective.descriptor import Descriptor, Operation, check_agreement
from psframework.collective.exchange import SMALL, plan, reduction
from psframework.collective.reach import Reach
from psframework.collective.resident import InPlace, Place, Residents, Share
from psframework.collective.staging import TURNS, Exchange, Staging
from psframework.collective.work import Flat, Work
from psframework.errors import ArgumentError, CollectiveMismatch, ContextClosed, DeadlineExceeded, PeerLost
from psframework.proto.v1.error_pb2 import ErrorDetail
from psframework.rpc.status import detail_to_error, error_to_detail
from psframework.wire.shm import Segment
from psframework.wire.threads import in_thread

FAR_BYTES: Final = 32 << 20
"""The slots of all ranks that are used where caches shall not hold them: as much as a large cache."""

SLICE_SECONDS: Final = 0.05
"""How long a rank sleeps before it looks whether somebody gave up."""

# Before it sleeps, it looks for a moment. It does not yield the core then: measured, that gained nothing, and
# kept the loop waiting for up to 12 ms where others wanted the core.
_SPIN_SECONDS: Final = 20e-6

_TEXT: Final = 600  # of an error's text in a note, which holds its class and attributes too
_SOME: Final = 6

Running = Iterator[None]
"""A collective on its way: it yields where it must wait until all have arrived at its step."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Where things are in a group's segment: the lines of all ranks, then the slots of rank 0, of rank 1, ...

    Args:
        size: number of ranks.
    """

    size: int

    @property
    def slot_bytes(self) -> int:
        """Of a slot, and so of a chunk of a large array: the slots of all ranks fit into a large cache."""
        return min(1 << 20, max(256 << 10, (4 << 20) // self.size & -4096))

    @property
    def slots(self) -> int:
        """How many each rank has: `TURNS`, and those that are used where no cache shall hold them."""
        return TURNS + max(TURNS, FAR_BYTES // (self.size * self.slot_bytes))

    @property
    def nbytes(self) -> int:
        """Of the segment."""
        return self.slot(self.size, 0)

    def slot(self, rank: int, number: int) -> int:
        """Offset of a slot."""
        return self.size * LINE_BYTES + (rank * self.slots + number) * self.slot_bytes


def segment_bytes(size: int) -> int:
    """Length of the segment that a group of `size` ranks needs."""
    return Layout(size).nbytes


class SharedMemory:
    """Transport between the ranks of one host. Each of them makes one, of the same segment, zeroed at first.

    Args:
        rank: this process's rank.
        size: number of ranks.
        segment: of `segment_bytes(size)` bytes; it is closed with the transport.
        names: of the members: by their ranks in the group, as messages call them, in the order of `rank`.
        cores: that the ranks of this host share; with fewer cores than ranks nobody spins.
        group: its name, for messages.
        share: makes memory for resident arrays; None if there shall be none.
    """

    name = "shm"
    lives_on = True

    def __init__(
        self,
        rank: int,
        size: int,
        segment: Segment,
        names: Mapping[int, str],
        cores: int,
        group: str = "",
        share: Share | None = None,
    ) -> None:
        layout = Layout(size)
        if segment.nbytes < layout.nbytes:
            raise ArgumentError(f"{size} ranks need {layout.nbytes} bytes, the segment has {segment.nbytes}")
        self._rank, self._size, self._group = rank, size, group
        self._names, self._numbers = names, tuple(names)
        self._segment = segment
        self._board = Board(segment, rank, size)
        self._slots = [
            [
                segment.array(layout.slot(each, slot), (layout.slot_bytes,), "uint8")
                for slot in range(layout.slots)
            ]
            for each in range(size)
        ]
        self._residents = None if share is None else Residents(rank, size, share)
        self._reach = Reach()
        self._spins = size <= cores
        self._step = 1  # the segment's zeros say that all have arrived at step 0
        self._error: BaseException | None = None
        self._closed = False
        self._lock = threading.Lock()  # for who is first to abort, and that nothing comes after the end
        self._queue: SimpleQueue[tuple[Running, Work, bool] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def start(self, work: Work) -> None:
        """Begins `work`. A small one whose ranks come within some microseconds is done on return."""
        running = self._run(work)
        small = max(_nbytes(work.send), _nbytes(work.receive)) <= SMALL
        if small and self._try_at_once(running, work):
            return
        with self._lock:
            if not self._closed:
                self._hand_over(running, work, small)
                return
        self._fail(work, self._given_up() or ContextClosed(f"group {self._group!r} is closed"))

    def _hand_over(self, running: Running, work: Work, begun: bool) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name=f"psf-shm-{self._group}", daemon=True)
            self._thread.start()
        self._queue.put((running, work, begun))

    def abort(self, error: BaseException) -> None:
        """Nobody waits any more, on any rank; see `Transport.abort`."""
        with self._lock:
            if self._error is not None:
                return
            self._error = error
        self._board.abort(error_to_detail(error, limit=_TEXT).SerializeToString())

    async def close(self) -> None:
        """Ends what runs, on all ranks, and gives the segment back."""
        who = self._who(self._rank)
        self.abort(
            PeerLost(f"{who} closed group {self._group!r}", peer=self._names[self._numbers[self._rank]])
        )
        with self._lock:
            self._closed = True
        if self._thread is not None:
            self._queue.put(None)
            await in_thread(self._thread.join)
            self._thread = None
        self._slots, self._residents = [], None
        # A board that nobody else sees: another thread may be starting an operation, which will fail.
        with Segment.create(self._size * LINE_BYTES) as private:
            self._board = Board(private, self._rank, self._size)
        self._segment.close()

    async def empty(self, shape: Sequence[int], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """A resident array, of zeros: an all-reduce of it is done in place. All ranks call this alike.

        Raises:
            ResourceExhausted: there is no memory for it.
        """
        if self._residents is None:
            return np.zeros(tuple(shape), dtype)
        return await self._residents.empty(shape, dtype)

    def _run(self, work: Work) -> Running:
        """All of one operation but the waiting."""
        if (error := self._given_up()) is not None:
            raise error
        place, first, data = self._place(work), self._step, work.descriptor.encode()
        key = 0 if place is None else place.key
        self._board.announce(first, data, key, self._reach.far)
        far = [self._reach.far] * self._size  # the others' is not known yet
        # A rank that takes dtype and shape from the root learns them at the first barrier.
        known = work.receive is not None or not work.descriptor.open
        exchange = self._plan(work, first, far) if known and place is None else None
        if exchange is not None:
            self._fill(exchange, 0)
        yield from self._meet()
        self._check(work, first, data)
        far[:] = [self._board.far(first, rank) for rank in range(self._size)]
        keys = {self._board.key(first, rank) for rank in range(self._size)}
        if place is not None and keys == {key}:
            exchange = InPlace(self._rank, place.mirrors, reduction(work))
        elif keys != {0}:  # resident on some ranks only, or elsewhere: all begin again
            exchange = self._plan(work, self._step, far)
            self._fill(exchange, 0)
            yield from self._meet()
        elif exchange is None:
            exchange = self._plan(work, first, far)
        exchange.drain(0)
        if exchange.rounds > 1:
            self._fill(exchange, 1)
        for turn in range(1, exchange.rounds):
            self._board.arrive(self._step)
            if turn + 1 < exchange.rounds:
                self._fill(exchange, turn + 1)
            yield
            self._step += 1
            exchange.drain(turn)
        self._reach.settle()
        self._board.complete(work.descriptor.sequence)

    def _place(self, work: Work) -> Place | None:
        """Where the array lies, if it may be reduced in place: a small one is quicker without."""
        array = work.receive
        if self._residents is None or array is None or array.nbytes <= SMALL:
            return None
        return self._residents.find(array) if work.descriptor.operation is Operation.ALL_REDUCE else None

    def _plan(self, work: Work, step: int, far: list[bool]) -> Exchange:
        return plan(work, Staging(self._rank, self._size, self._slots, step, far))

    def _fill(self, exchange: Exchange, turn: int) -> None:
        start = time.perf_counter()
        nbytes = exchange.fill(turn)
        self._reach.note(nbytes, time.perf_counter() - start)

    def _meet(self) -> Running:
        self._board.arrive(self._step)
        yield
        self._step += 1

    def _check(self, work: Work, step: int, data: bytes) -> None:
        """Compares what all are about to do, just after the operation's first barrier."""
        own = work.descriptor
        told = {rank: self._board.announced(step, rank) for rank in range(self._size)}
        same = all(each.startswith(data) for each in told.values())
        if same and not own.open and own.operation is not Operation.REFUSE:
            return
        descriptors = {rank: Descriptor.decode(each) for rank, each in told.items()}
        said = {self._numbers[rank]: each for rank, each in descriptors.items()}
        check_agreement(self._group, said, self._names)
        if work.receive is None and work.allocate is not None and own.open:
            work.receive = work.allocate(descriptors[own.root])

    def _try_at_once(self, running: Running, work: Work) -> bool:
        """Whether `work` could be ended without waiting."""
        try:
            next(running)
            while self._soon():
                next(running)
        except StopIteration:
            work.done(work, None)
        except BaseException as error:
            self._fail(work, error)
        else:
            return False
        return True

    def _serve(self) -> None:
        """The transport's thread."""
        while (item := self._queue.get()) is not None:
            running, work, begun = item
            try:
                if begun:
                    self._wait(work)
                for _ in running:
                    self._wait(work)
            except BaseException as error:
                self._fail(work, error)
            else:
                work.done(work, None)

    def _fail(self, work: Work, error: BaseException) -> None:
        if not isinstance(error, CollectiveMismatch):  # which all ranks find alike, and are in step after it
            self.abort(error)
        if error is self._error:
            error.__traceback__ = None  # it stays, and would keep the arrays of its frames
        work.done(work, error)

    def _soon(self) -> bool:
        """Whether all have arrived; looks for some microseconds if there are cores for all."""
        board, step = self._board, self._step
        if board.arrived(step):
            return True
        if not self._spins:
            return False
        end = time.perf_counter() + _SPIN_SECONDS
        while time.perf_counter() < end:
            if board.arrived(step):
                return True
        self._part()
        return False

    def _part(self) -> None:
        """Leaves the core where a lower rank wants to run too, if there are enough for all."""
        others = self._board.cores()
        del others[self._rank]
        if cores.current() in others[: self._rank]:
            cores.leave(set(others))

    def _wait(self, work: Work) -> None:
        """Sleeps until all have arrived at the step."""
        if self._soon():
            return
        board, step = self._board, self._step
        while not board.arrived(step):
            if (error := self._given_up()) is not None:
                if board.arrived(step):  # whoever gave up did so after this step
                    return
                raise error
            if work.deadline.expired:
                raise self._late(work)
            board.sleep(step, min(SLICE_SECONDS, work.deadline.remaining()))

    def _given_up(self) -> BaseException | None:
        """Why the group ended, if it did."""
        if self._error is None and (told := self._board.aborted()) is not None:
            rank, note = told
            try:
                self.abort(detail_to_error(ErrorDetail.FromString(note)))
            except DecodeError:
                text = f"{self._who(rank)} gave group {self._group!r} up"
                self.abort(PeerLost(text, peer=self._names[self._numbers[rank]]))
        return self._error

    def _late(self, work: Work) -> DeadlineExceeded:
        missing = self._board.missing(self._step)
        told = ", ".join(
            f"{self._who(rank)}, whose last completed operation is {self._board.completed(rank)}"
            for rank in missing[:_SOME]
        )
        return DeadlineExceeded(
            f"operation {work.descriptor.sequence} of group {self._group!r}, {work.descriptor}: "
            f"the deadline passed while waiting for {told}{' ...' if len(missing) > _SOME else ''}"
        )

    def _who(self, rank: int) -> str:
        number = self._numbers[rank]
        return f"rank {number} ({self._names[number]})"


def _nbytes(array: Flat | None) -> int:
    return 0 if array is None else array.nbytes
