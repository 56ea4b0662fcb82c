"""Several ranks of a group in one process: a Post that is only memory, and an operation run on all ranks."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from psframework import backend
from psframework.collective.descriptor import Descriptor, Operation
from psframework.collective.ops import ReduceOp
from psframework.collective.post import Key, Letter
from psframework.collective.work import Flat, Transport, Work
from psframework.errors import DeadlineExceeded, PeerLost, PsfError
from psframework.rpc.deadline import Deadline
from psframework.wire.memory import Buffer

Rule = Callable[[int, int, Key], bool]
REDUCING = (Operation.ALL_REDUCE, Operation.REDUCE, Operation.REDUCE_SCATTER)
ROOTED = (Operation.BROADCAST, Operation.REDUCE, Operation.GATHER, Operation.SCATTER)
SHARING = (Operation.SCATTER, Operation.REDUCE_SCATTER, Operation.ALL_TO_ALL)
"""Their arrays are cut into a part for each rank: lengths divide by the number of ranks."""


class Mail:
    """What carries letters between `size` ranks of this process.

    A letter is copied only when it arrives, some turns of the loop after it was sent: what changes too early
    arrives wrong.

    Args:
        size: number of ranks.
        seed: for how many turns of the loop each letter travels; equal ones arrive in the order sent.

    Attributes:
        sent: (source, to, key, bytes of parts) of each letter.
    """

    def __init__(self, size: int, *, seed: int | None = None) -> None:
        self.names = [f"trainer-{rank}" for rank in range(size)]
        self.posts = [MemoryPost(self, rank) for rank in range(size)]
        self.sent: list[tuple[int, int, Key, int]] = []
        self._random = None if seed is None else random.Random(seed)
        self._lost: set[int] = set()
        self._held: dict[Rule, asyncio.Event] = {}

    @property
    def untaken(self) -> int:
        """Letters that arrived and nobody took."""
        return sum(len(post.letters) for post in self.posts)

    def hold(self, rule: Rule) -> Callable[[], None]:
        """Letters of which `rule(source, to, key)` is true do not arrive until the result is called."""
        event = self._held[rule] = asyncio.Event()
        return event.set

    def lose(self, rank: int) -> None:
        """That rank dies: nothing it sent arrives any more, and whoever waits for it gets PeerLost."""
        self._lost.add(rank)
        for post in self.posts:
            post.wake()

    def gone(self, rank: int) -> PeerLost | None:
        """The error if the rank is dead."""
        if rank not in self._lost:
            return None
        return PeerLost(f"rank {rank} ({self.names[rank]}) is gone", peer=self.names[rank])

    async def travel(self, source: int, to: int, key: Key) -> None:
        """Returns when the letter arrives."""
        for _ in range(1 if self._random is None else self._random.randint(1, 20)):
            await asyncio.sleep(0)
        for rule, event in self._held.items():
            if rule(source, to, key):
                await event.wait()


class MemoryPost:
    """The Post of one rank."""

    def __init__(self, mail: Mail, rank: int) -> None:
        self.rank = rank
        self.letters: dict[tuple[int, Key], Letter] = {}
        self._mail = mail
        self._changed: dict[tuple[int, Key], asyncio.Event] = {}
        self._error: PsfError | None = None

    @property
    def size(self) -> int:
        return len(self._mail.names)

    @property
    def names(self) -> Sequence[str]:
        return self._mail.names

    @property
    def numbers(self) -> Sequence[int]:
        return range(self.size)

    async def send(
        self, to: int, key: Key, header: bytes, parts: Sequence[Buffer], deadline: Deadline
    ) -> None:
        assert to != self.rank, "no rank writes to itself"
        self._mail.sent.append((self.rank, to, key, sum(memoryview(part).nbytes for part in parts)))
        await within(self._mail.travel(self.rank, to, key), deadline, f"rank {to} ({self.names[to]})")
        for error in (self._error, self._mail.gone(to), self._mail.gone(self.rank)):
            if error is not None:
                raise error
        copies = [memoryview(bytes(part)) for part in parts]
        self._mail.posts[to].deliver(self.rank, key, Letter(bytes(header), copies))

    async def receive(self, source: int, key: Key, deadline: Deadline) -> Letter:
        assert source != self.rank
        where = (source, key)
        assert where not in self._changed, f"two wait for {where}"
        event = self._changed[where] = asyncio.Event()
        try:
            while where not in self.letters:
                error = self._error or self._mail.gone(source)
                if error is not None:
                    raise error
                event.clear()
                await within(event.wait(), deadline, f"rank {source} ({self.names[source]})")
        finally:
            del self._changed[where]
        return self.letters.pop(where)

    def deliver(self, source: int, key: Key, letter: Letter) -> None:
        """A letter arrives."""
        assert (source, key) not in self.letters, f"a second letter {key} of rank {source}"
        self.letters[source, key] = letter
        if (source, key) in self._changed:
            self._changed[source, key].set()

    def abort(self, error: PsfError) -> None:
        """Every wait ends with `error`."""
        self._error = error
        self.wake()

    def wake(self) -> None:
        """Whoever waits looks again."""
        for event in self._changed.values():
            event.set()


async def within(what: Awaitable[object], deadline: Deadline, who: str) -> None:
    """Awaits `what` as long as the deadline allows."""
    try:
        async with asyncio.timeout(deadline.seconds()):
            await what
    except TimeoutError:
        raise DeadlineExceeded(f"{who} did not answer in time") from None


def describe(
    operation: Operation, array: Flat | None, *, op: ReduceOp = ReduceOp.SUM, root: int = 0, sequence: int = 1
) -> Descriptor:
    """The descriptor of an operation with one-dimensional arrays like `array`."""
    if array is None:
        return Descriptor(sequence, operation)
    return Descriptor(
        sequence,
        operation,
        backend.dtype_name(array.dtype),
        array.shape,
        op if operation in REDUCING else None,
        root if operation in ROOTED else -1,
    )


def opened(descriptor: Descriptor) -> Descriptor:
    """As a rank says it that takes dtype and shape from the root."""
    return replace(descriptor, open=True, dtype="", shape=())


def prepare(descriptor: Descriptor, rank: int, size: int, send: Flat | None, deadline: Deadline) -> Work:
    """The work of one rank, with the arrays that `Work` lists; `done` is set when it is started."""
    operation, root = descriptor.operation, descriptor.root
    at_root = root in (-1, rank)
    receive: Flat | None = None
    if operation is Operation.ALL_REDUCE or (operation is Operation.REDUCE and at_root):
        receive = send
    elif descriptor.open or send is None:
        pass
    elif operation is Operation.BROADCAST and not at_root:
        receive = np.zeros_like(send)
    elif operation in (Operation.ALL_GATHER, Operation.GATHER) and at_root:
        receive = np.zeros(len(send) * size, send.dtype)
    elif operation in (Operation.SCATTER, Operation.REDUCE_SCATTER):
        receive = np.zeros(len(send) // size, send.dtype)
    elif operation is Operation.ALL_TO_ALL:
        receive = np.zeros_like(send)
    gives = at_root or operation not in (Operation.BROADCAST, Operation.SCATTER)
    return Work(
        descriptor,
        send if gives and not descriptor.open else None,
        receive,
        deadline,
        lambda work, error: None,
        (lambda root_says: allocate(root_says, size)) if descriptor.open else None,
    )


def allocate(root_says: Descriptor, size: int) -> Flat:
    """The array of an open rank."""
    n = int(np.prod(root_says.shape, dtype=int))
    n = n // size if root_says.operation is Operation.SCATTER else n
    return np.zeros(n, backend.dtype_from_name(root_says.dtype))


async def run_work(transport: Transport, work: Work) -> BaseException | None:
    """Starts `work` and waits for its end; returns its error."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[BaseException | None] = loop.create_future()

    def done(work: Work, error: BaseException | None) -> None:
        loop.call_soon_threadsafe(_set, ended, error)

    work.done = done
    transport.start(work)
    return await ended


def _set(ended: asyncio.Future[BaseException | None], error: BaseException | None) -> None:
    assert not ended.done(), "done was called twice"
    ended.set_result(error)


async def collect(
    transports: Sequence[Transport] | Mapping[int, Transport],
    descriptors: Sequence[Descriptor],
    sends: Sequence[Flat | None],
    deadline: Deadline | None = None,
) -> list[Flat | BaseException | None]:
    """Runs one operation on all ranks.

    Returns:
        By rank: what it received, or the error that it got.
    """
    size = len(descriptors)
    until = deadline or Deadline.after(20)
    works = [prepare(descriptors[rank], rank, size, sends[rank], until) for rank in range(size)]
    errors = await asyncio.gather(*(run_work(transports[rank], works[rank]) for rank in range(size)))
    return [works[rank].receive if error is None else error for rank, error in enumerate(errors)]
