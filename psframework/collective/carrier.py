"""The post of a group: letters travel as calls, their parts by whichever lane the two ranks share."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Final

from psframework.collective.mailbox import Mailbox
from psframework.collective.post import Key, Letter, Post
from psframework.collective.queue import again
from psframework.errors import DeadlineExceeded, PeerLost, PsfError
from psframework.membership.signal import Signal
from psframework.proto.v1 import collective_pb2 as pb
from psframework.rpc.deadline import Deadline
from psframework.rpc.session.peer import Peer
from psframework.wire.memory import Buffer

SERVICE: Final = "psframework.proto.v1.CollectiveService"
DELIVER: Final = f"/{SERVICE}/Deliver"

FAREWELL_SECONDS: Final = 2.0  # until a rank that has left has said so

Reach = Callable[[int, Deadline], Awaitable[Peer]]
"""Opens the session with a rank; raises PeerLost if it is gone."""


class Carrier:
    """Implements Post.

    Args:
        group: which.
        rank: this one.
        names: of the members, by rank.
        reach: finds the sessions.
        lost: told of a rank that can't be reached, and why.
    """

    def __init__(
        self,
        group: pb.GroupId,
        rank: int,
        names: Sequence[str],
        reach: Reach,
        lost: Callable[[int, PeerLost], None],
    ) -> None:
        self.rank, self.size, self.names = rank, len(names), tuple(names)
        self.numbers = tuple(range(self.size))
        self.mailbox = Mailbox()
        self._group, self._reach, self._lost = group, reach, lost
        self._room = Signal()
        self._scopes: set[asyncio.Timeout] = set()
        self._arriving: dict[tuple[int, Key], asyncio.Future[Letter]] = {}
        self._departed: dict[int, PeerLost] = {}
        self._departure = Signal()
        self._sending, self._sent = 0, Signal()
        self._error: BaseException | None = None

    # As a Post

    async def send(
        self, to: int, key: Key, header: bytes, parts: Sequence[Buffer], deadline: Deadline
    ) -> None:
        """As `Post.send`."""
        if to == self.rank:
            copies = [memoryview(bytes(part)) for part in parts]
            await self.deliver(to, key, Letter(header, copies), deadline)
            return
        if to in self._departed:
            raise again(self._departed[to])
        request = pb.DeliverRequest(
            group=self._group,
            source=self.rank,
            channel=key.channel,
            sequence=key.sequence,
            step=key.step,
            header=header,
        )
        self._sending += 1
        try:
            async with self._until_abort(f"rank {to} ({self.names[to]}) did not take {_text(key)}", deadline):
                try:
                    peer = await self._reach(to, deadline)
                    reply, _ = await peer.call(
                        DELIVER, request, pb.DeliverReply, parts=parts, deadline=deadline
                    )
                    if reply.closed:
                        raise await self._farewell(to)
                except PeerLost as error:
                    if error.peer == self.names[to] or error.peer not in self.names:
                        self._lost(to, error)  # else it is one that `to` has lost
                    raise
        finally:
            self._sending -= 1
            self._sent.notify()

    async def _farewell(self, rank: int) -> BaseException:
        """Why a rank has left, as it says itself: that comes after what it said to a letter."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FAREWELL_SECONDS):
                while rank not in self._departed:
                    await self._departure.wait()
        name = self.names[rank]
        silent = PeerLost(f"rank {rank} ({name}) has left without a word", peer=name, reason="closed")
        return again(self._departed.get(rank, silent))

    async def receive(self, source: int, key: Key, deadline: Deadline) -> Letter:
        """As `Post.receive`."""
        self._check()
        letter = self.mailbox.take(source, key)
        if letter is not None:
            self._room.notify()
            return letter
        if source in self._departed:
            raise again(self._departed[source])
        arriving: asyncio.Future[Letter] = asyncio.get_running_loop().create_future()
        self.mailbox.wait(source, key, partial(_settle, arriving))
        self._arriving[source, key] = arriving
        self._room.notify()  # what comes may wait for room
        try:
            text = f"rank {source} ({self.names[source]}) sent no {_text(key)}"
            async with self._until_abort(text, deadline):
                return await arriving
        finally:
            del self._arriving[source, key]
            self.mailbox.forget(source, key)

    # For the servicer and the seat

    async def deliver(self, source: int, key: Key, letter: Letter, deadline: Deadline) -> None:
        """A letter has come; returns once it is in the mailbox."""
        async with self._until_abort(f"rank {self.rank} ({self.names[self.rank]}) has no room", deadline):
            while not self.mailbox.put(source, key, letter):
                await self._room.wait()

    async def settle(self) -> None:
        """Returns once all that was sent has arrived."""
        while self._sending:
            await self._sent.wait()

    def depart(self, rank: int, error: PeerLost) -> None:
        """A rank has closed the group: what it sent is here, and nothing more will come."""
        self._departed[rank] = error
        self._departure.notify()
        for (source, _), arriving in self._arriving.items():
            if source == rank and not arriving.done():
                arriving.set_exception(again(error))

    def fail(self, error: BaseException) -> None:
        """Whatever waits, and whatever is asked for later, ends with this error."""
        if self._error is not None:
            return
        self._error = error
        now = asyncio.get_running_loop().time()
        for scope in self._scopes:
            if not scope.expired():
                scope.reschedule(now)
        self.mailbox.clear()

    def _check(self) -> None:
        if self._error is not None:
            raise again(self._error)

    @asynccontextmanager
    async def _until_abort(self, text: str, deadline: Deadline) -> AsyncIterator[None]:
        """Ends the block when the group is aborted, or the deadline passes."""
        self._check()
        scope = asyncio.timeout(deadline.seconds())
        try:
            async with scope:
                self._scopes.add(scope)
                try:
                    yield
                finally:
                    self._scopes.discard(scope)
        except TimeoutError:
            self._check()
            raise DeadlineExceeded(f"{text} in time") from None
        except PsfError:
            self._check()  # what the group ended with says more than what came of it
            raise


def _settle(arriving: asyncio.Future[Letter], letter: Letter) -> None:
    if not arriving.done():
        arriving.set_result(letter)


def _text(key: Key) -> str:
    """A letter, for people."""
    if key.channel == "p2p":
        return f"message {key.sequence} with tag {key.step}"
    return f"part {key.step} of operation {key.sequence}"


class Part:
    """Implements Post for some of a group's ranks, which count from 0 among themselves.

    Args:
        post: of the group.
        ranks: which of its ranks take part; this one is among them.
    """

    def __init__(self, post: Post, ranks: Sequence[int]) -> None:
        self._post, self._ranks = post, tuple(ranks)
        self.rank, self.size = self._ranks.index(post.rank), len(self._ranks)
        self.names = tuple(post.names[rank] for rank in self._ranks)
        self.numbers = tuple(post.numbers[rank] for rank in self._ranks)

    async def send(
        self, to: int, key: Key, header: bytes, parts: Sequence[Buffer], deadline: Deadline
    ) -> None:
        """As `Post.send`."""
        await self._post.send(self._ranks[to], key, header, parts, deadline)

    async def receive(self, source: int, key: Key, deadline: Deadline) -> Letter:
        """As `Post.receive`."""
        return await self._post.receive(self._ranks[source], key, deadline)
