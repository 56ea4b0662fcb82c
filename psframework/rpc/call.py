"""What a handler sees of a call: who called, until when, the bulk payload, and where bulk replies go."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from psframework.errors import ArgumentError, WireError
from psframework.rpc.deadline import Deadline
from psframework.wire.device_bytes import DeviceBytes, Part
from psframework.wire.memory import Buffer
from psframework.wire.shm import Segment

if TYPE_CHECKING:
    from psframework.rpc.room import Room
    from psframework.rpc.session.peer import Peer

PartStream = AsyncIterator[tuple[int, Buffer]]


@dataclass(frozen=True, slots=True)
class PeerInfo:
    """One life of one member.

    Args:
        name: unique among live members.
        role: such as "worker".
        job: the scope of its names; empty for services.
        incarnation: unique for ever.
        certificate_name: the URI in its certificate, where TLS proved it.
    """

    name: str
    role: str
    job: str
    incarnation: int
    certificate_name: str | None = None


class Incoming:
    """A bulk payload that may still be arriving.

    Views are to be read, not written. They stay valid for as long as anything refers to them, also in another
    thread; in shared memory a view pins memory of the sender, so copy what is kept beyond the call.

    Attributes:
        sizes: lengths of the parts in bytes.
    """

    __slots__ = ("_error", "_left", "_ready", "_waiter", "_wanted", "sizes")

    def __init__(self, sizes: Sequence[int], ready: Iterable[memoryview] = ()) -> None:
        self.sizes = tuple(sizes)
        self._ready: deque[tuple[int, memoryview]] = deque(enumerate(ready))
        self._left = len(self.sizes)
        self._waiter: asyncio.Future[None] | None = None
        self._wanted = 1  # parts that the waiter waits for
        self._error: BaseException | None = None

    def feed(self, index: int, view: memoryview) -> None:
        """Transport: part `index` is complete."""
        self._ready.append((index, view))
        if len(self._ready) >= self._wanted:
            self._wake()

    def fail(self, error: BaseException) -> None:
        """Transport: the rest will never come."""
        self._error = error
        self._wake()

    async def parts(self) -> AsyncIterator[tuple[int, memoryview]]:
        """Yields (index, view) in the order in which parts complete, while the transfer goes on.

        Each part is yielded once, over all iterations.

        Raises:
            PeerLost, WireError: the rest of the payload will not come.
        """
        while self._left:
            while self._ready:
                self._left -= 1
                yield self._ready.popleft()
            if self._left:
                await self._wait()

    async def batches(self, least: int = 1) -> AsyncIterator[list[tuple[int, memoryview]]]:
        """As `parts`, but yields all that is here at once: at least so many, except for the last ones."""
        while self._left:
            wanted = min(least, self._left)
            while len(self._ready) < wanted:
                await self._wait(wanted)
            batch = list(self._ready)
            self._ready.clear()
            self._left -= len(batch)
            yield batch

    async def whole(self) -> list[memoryview]:
        """All parts, in their order, once the last byte is there."""
        views: list[memoryview | None] = [None] * len(self.sizes)
        async for index, view in self.parts():
            views[index] = view
        if any(view is None for view in views):
            raise ArgumentError("some parts of this payload were already consumed by parts()")
        return [view for view in views if view is not None]

    async def arrived(self) -> None:
        """Waits until all parts are here, without taking them."""
        while len(self._ready) < self._left:
            await self._wait(self._left)

    @property
    def is_here(self) -> bool:
        """Whether nothing is on its way any more."""
        return len(self._ready) >= self._left

    def whole_now(self) -> list[memoryview] | None:
        """All parts if they are here already (always so on the inline and shared-memory lanes), else None."""
        if len(self._ready) < len(self.sizes):
            return None
        views = [view for _, view in sorted(self._ready, key=lambda item: item[0])]
        self._ready.clear()
        self._left = 0
        return views

    async def _wait(self, wanted: int = 1) -> None:
        if self._error is not None:
            raise self._error
        if self._waiter is not None:
            raise ArgumentError("two tasks iterate over one payload")
        self._waiter, self._wanted = asyncio.get_running_loop().create_future(), wanted
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


NO_PAYLOAD: Final = Incoming(())


def _nothing() -> None:
    pass


class Call:
    """One call, as its handler sees it.

    Attributes:
        peer: who calls, as the connection proved it.
        deadline: when the caller gives up; pass it on to nested calls.
        payload: the bulk payload of the request.
        caller: the way back: calls to whoever called. None for callers with an ordinary stub.
        started: whether the handler took over what the values of the request brought; it sets that itself.
            Until then an error reply says that the call left everything untouched.
        room: how much replies to this peer hold; None where none waits.
        reply_lost: called if what the handler returned can't be sent; set by the handler.
        taken: for handlers that go on to wait for others, once the payload is here: from now on it holds up
            nothing that its sender sends. Set by the transport.
        header_bytes: of what is not payload, such as long lists; 0 where they are few. Set by the transport.
    """

    __slots__ = ("_held", "_segment", "caller", "deadline", "header_bytes", "payload", "peer", "reply",
                 "reply_lost", "reply_sizes", "room", "started", "taken")  # fmt: skip

    def __init__(
        self,
        peer: PeerInfo,
        deadline: Deadline,
        payload: Incoming = NO_PAYLOAD,
        *,
        caller: Peer | None = None,
        segment: Callable[[int], Segment] | None = None,
        room: Room | None = None,
    ) -> None:
        self.peer = peer
        self.deadline = deadline
        self.payload = payload
        self.caller = caller
        self.room = room
        self._segment = segment
        self._held = 0
        self.started = False
        self.taken: Callable[[], None] = _nothing
        self.header_bytes = 0
        self.reply_lost: Callable[[], None] | None = None
        self.reply: Sequence[Part] | PartStream = ()
        self.reply_sizes: tuple[int, ...] = ()

    @property
    def nbytes(self) -> int:
        """What the call holds here, in bytes: its payload, and a large header."""
        sizes = self.payload.sizes
        return self.header_bytes + sum(sizes) if sizes else self.header_bytes

    def segments(self, segment_id: int) -> Segment:
        """The segment that the caller shared under this id in this session; WireError if it did not."""
        if self._segment is None:
            raise WireError(f"segment {segment_id} was not shared: this caller has no session")
        return self._segment(segment_id)

    def reply_parts(self, parts: Sequence[Part] | PartStream, sizes: Sequence[int] | None = None) -> None:
        """Sets the bulk payload of the reply.

        Args:
            parts: the parts in order; or an async iterator of (index, part) in any order, which is run after
                the handler returned, and whose parts travel as they come. Each index comes once.
                Buffers must not change until the call is over.
            sizes: lengths of all parts in bytes; needed with an iterator.
        """
        if isinstance(parts, AsyncIterator):
            if sizes is None:
                raise ArgumentError("reply_parts needs the sizes of parts that an iterator will make")
            self.reply_sizes = tuple(sizes)
        else:
            found = tuple(
                len(part) if type(part) is DeviceBytes else memoryview(part).nbytes for part in parts
            )
            if sizes is not None and tuple(sizes) != found:
                raise ArgumentError(f"reply parts have {found} bytes, not {tuple(sizes)} as announced")
            self.reply_sizes = found
        self.reply = parts

    def hold_reply(self, nbytes: int) -> None:
        """The reply takes so many bytes, until it has left; ResourceExhausted if there is no room."""
        if self.room is not None:
            self.room.hold(nbytes)
            self._held += nbytes

    def over(self) -> None:
        """Transport: the reply has left, or never will."""
        if self._held and self.room is not None:
            held, self._held = self._held, 0
            self.room.let_go(held)
