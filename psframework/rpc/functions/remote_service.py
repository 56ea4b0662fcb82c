"""RemoteService: registered functions and generators, called by peers."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from types import MappingProxyType, TracebackType
from typing import Any, Self, TypeAlias

from psframework.errors import WireError
from psframework.proto.v1.remote_pb2 import (
    CloseStreamReply,
    CloseStreamRequest,
    DescribeReply,
    DescribeRequest,
    FunctionInfo,
    InvokeReply,
    InvokeRequest,
    NextItemsReply,
    NextItemsRequest,
    OpenStreamReply,
    OpenStreamRequest,
    Value,
)
from psframework.rpc import registry
from psframework.rpc.call import Call, PeerInfo
from psframework.rpc.deadline import Deadline
from psframework.rpc.functions.context import Caller, Running
from psframework.rpc.functions.execute import Executor
from psframework.rpc.functions.function_stats import FunctionStats
from psframework.rpc.functions.scope import entering
from psframework.rpc.functions.streams import Packed, Stream, Streams, refuse
from psframework.rpc.functions.unpacking import in_thread
from psframework.rpc.registry import Entry
from psframework.rpc.service import Method
from psframework.rpc.session.payload import byte_views
from psframework.rpc.session.peer import Peer
from psframework.rpc.values import arguments
from psframework.rpc.values.journey import Journey, Outcome
from psframework.wire import threads
from psframework.wire.device_bytes import Part
from psframework.wire.lanes import INLINE_BYTES, Lane
from psframework.wire.memory import Buffer, copy_into, empty

SERVICE = "psframework.proto.v1.RemoteService"
COPY_IN_THREAD = 1 << 20
Arguments: TypeAlias = tuple[tuple[Any, ...], dict[str, Any]]
NO_METADATA: Mapping[str, str] = MappingProxyType({})


class RemoteService:
    """The servicer. An async context manager; leaving ends the generators that still run.

    Args:
        executor: what functions run in; open.
    """

    name = SERVICE

    def __init__(self, executor: Executor) -> None:
        self.executor = executor
        self._streams = Streams()
        self._watched: set[Peer] = set()

    @property
    def streams(self) -> int:
        """Generators that run, or of which items have not been fetched."""
        return len(self._streams)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._streams.end()

    def methods(self) -> Sequence[Method]:
        """The methods of RemoteService."""
        return [
            Method("Invoke", InvokeRequest, InvokeReply, self.invoke),
            Method("OpenStream", OpenStreamRequest, OpenStreamReply, self.open_stream),
            Method("NextItems", NextItemsRequest, NextItemsReply, self.next_items),
            Method("CloseStream", CloseStreamRequest, CloseStreamReply, self.close_stream),
            Method("Describe", DescribeRequest, DescribeReply, self.describe),
        ]

    async def invoke(self, request: InvokeRequest, call: Call) -> InvokeReply:
        """Runs a function and returns its result."""
        executor = self.executor
        entry = executor.allow(request.function, call.peer)
        payload = call.payload
        with executor.admit(entry, call.peer, call.nbytes, call) as admission:
            parts = await payload.whole() if payload.sizes else []
            args, kwargs, waiting = take_arguments(request, parts, call, executor)
            if waiting is not None:
                args, kwargs = await waiting
            running = Running(caller_of(request, call), call.deadline)
            result = await executor.call(entry, args, kwargs, running, admission)
        del args, kwargs, parts
        reply = InvokeReply()
        self.give(result, call, reply.value)
        if call.reply_sizes:
            await self.settle_parts(call)
        return reply

    async def open_stream(self, request: OpenStreamRequest, call: Call) -> OpenStreamReply:
        """Starts a generator for the caller."""
        entry = self.executor.allow(request.call.function, call.peer)
        return OpenStreamReply(stream=await self.start_stream(entry, request, call))

    async def start_stream(self, entry: Entry, request: OpenStreamRequest, call: Call) -> int:
        """Starts a generator that the caller may call, perhaps a method; returns the stream's number."""
        owner = call.caller
        if owner is None:
            raise WireError("streams need a session: connect with psframework")
        executor = self.executor
        admission = executor.admit(entry, call.peer, call.nbytes)
        with ExitStack() as unless_opened:
            unless_opened.enter_context(admission)
            parts = await call.payload.whole() if call.payload.sizes else []
            args, kwargs, waiting = take_arguments(request.call, parts, call, executor)
            if waiting is not None:
                args, kwargs = await waiting
            unless_opened.pop_all()  # the generator leaves it
        inherited = Deadline.after(request.timeout_us * 1e-6) if request.timeout_us else Deadline.NEVER
        running = Running(caller_of(request.call, call), inherited)
        items = executor.iterate(entry, args, kwargs, running)
        self._watch(owner)
        stream = Stream(request.max_items, request.max_bytes)
        pack = partial(self._pack, call.peer)
        return self._streams.open(owner, stream, lambda made: made.produce(items, pack, admission))

    async def next_items(self, request: NextItemsRequest, call: Call) -> NextItemsReply:
        """Waits for items of a stream."""
        stream = self._streams.find(call.caller, request.stream)
        try:
            items, done = await stream.fetch()
        except Exception:
            self._streams.close(call.caller, request.stream)
            raise
        if done:
            self._streams.close(call.caller, request.stream)
        call.reply_lost = partial(refuse, items)
        reply, parts = NextItemsReply(done=done), list[Buffer]()
        for value, own, _ in items:
            value.first_part += len(parts)
            parts += own
            reply.items.append(value)
        if parts:
            call.reply_parts(parts)
        return reply

    def close_stream(self, request: CloseStreamRequest, call: Call) -> CloseStreamReply:
        """Ends a generator."""
        self._streams.close(call.caller, request.stream)
        return CloseStreamReply()

    def describe(self, request: DescribeRequest, call: Call) -> DescribeReply:
        """Lists functions and figures."""
        executor, stats = self.executor, self.executor.stats
        entries = {entry.name: entry for entry in registry.entries()}
        pool = executor.pool
        reply = DescribeReply(running=executor.running, queued=pool.queued, threads=pool.limit)
        nothing = FunctionStats()
        queued = pool.waiting()
        for name in sorted({*entries, *stats}):
            info = _describe(name, entries.get(name), stats.get(name, nothing))
            info.queued = queued[name]
            reply.functions.append(info)
        return reply

    def give(self, value: Any, call: Call, into: Value | None = None) -> Value:
        """Encodes a result for a reply to `call`, and sets the reply's parts; then call `settle_parts`."""
        journey = Journey(call.peer, is_reply=True)
        message = arguments.encode(value, journey, "the result", into)
        call.reply_lost = partial(journey.end, Outcome.REFUSED)
        if journey.parts:
            call.reply_parts(journey.parts)
        return message

    async def settle_parts(self, call: Call) -> None:
        """Counts the parts of a reply, and copies those that users' code could change while they leave.

        Raises:
            ResourceExhausted: the caller does not take what it asked for.
        """
        call.hold_reply(sum(call.reply_sizes))
        lanes = call.caller.lanes if call.caller is not None else frozenset()
        if Lane.STRIPED in lanes and Lane.SHM not in lanes and sum(call.reply_sizes) > INLINE_BYTES:
            assert isinstance(call.reply, Sequence)
            call.reply_parts(await _copies(call.reply))

    async def _pack(self, peer: PeerInfo, item: Any) -> Packed:
        journey = Journey(peer, is_reply=True)
        message = arguments.encode(item, journey)
        return message, await _copies(journey.parts), journey

    def _watch(self, owner: Peer) -> None:
        if owner in self._watched:
            return
        self._watched.add(owner)

        def lost() -> None:
            self._watched.discard(owner)
            self._streams.close_all_of(owner)

        owner.when_lost(lost)


def caller_of(request: InvokeRequest, call: Call) -> Caller:
    """Who calls, with what it said."""
    metadata = request.metadata
    return Caller(call.peer, dict(metadata) if metadata else NO_METADATA)


def take_arguments(
    request: InvokeRequest, parts: Sequence[Buffer], call: Call, executor: Executor, *, views: bool = True
) -> tuple[tuple[Any, ...], dict[str, Any], Awaitable[Arguments] | None]:
    """The arguments of a call; or, last, what has to be awaited for those with which its function starts.

    Args:
        request, parts, call: as they came.
        executor: is asked whether the peer may call classes whose objects are made.
        views: False copies large arrays too, for functions whose results keep them.

    Raises:
        WireError: they are not what a call has.
    """
    journey = Journey(call.peer, outgoing=False)
    journey.about = request.function
    try:
        if request.scope:
            entering(request.scope, call.peer)
        value, authorize = request.arguments, executor.authorize
        if arguments.may_build(value):
            reading = in_thread(
                lambda home: arguments.decode_call(
                    value, parts, journey, views=views, authorize=authorize, home=home
                )
            )
            return (), {}, _take_over(journey, call, reading)
        args, kwargs = arguments.decode_call(value, parts, journey, views=views, authorize=authorize)
    except BaseException:
        journey.end(Outcome.REFUSED)
        raise
    if journey.before_start:
        return args, kwargs, _take_over(journey, call, (args, kwargs))
    call.started = True
    journey.end(Outcome.ANSWERED)
    return args, kwargs, None


async def _take_over(journey: Journey, call: Call, taken: Arguments | Awaitable[Arguments]) -> Arguments:
    try:
        args, kwargs = taken if isinstance(taken, tuple) else await taken
        if journey.before_start:  # others have to answer, and what they send may wait for the window
            call.taken()
        for ready in journey.before_start:
            await ready
    except BaseException:
        journey.end(Outcome.REFUSED)
        raise
    call.started = True
    journey.end(Outcome.ANSWERED)
    return args, kwargs


async def _copies(parts: Sequence[Part]) -> list[Buffer]:
    if sum(map(len, parts)) < COPY_IN_THREAD:
        return [bytes(part) for part in parts]
    # Not in a thread of functions, which may wait for what is copied here.
    return await threads.in_thread(_copy_all, byte_views(parts))


def _copy_all(parts: Sequence[Buffer]) -> list[Buffer]:
    copies: list[Buffer] = []
    for part in parts:
        copy = empty(len(part))
        copy_into(copy, part)
        copies.append(copy)
    return copies


def _describe(name: str, entry: Entry | None, stats: FunctionStats) -> FunctionInfo:
    times = stats.times
    info = FunctionInfo(
        name=name,
        calls=stats.calls,
        errors=stats.errors,
        cancelled=stats.cancelled,
        refused=stats.refused,
        running=stats.running,
        seconds=times.total,
        seconds_p50=times.percentile(0.5),
        seconds_p90=times.percentile(0.9),
        seconds_p99=times.percentile(0.99),
    )
    if entry is not None:
        info.kind, info.idempotent = entry.kind.value, entry.idempotent
        info.roles.extend(sorted(entry.roles))
    return info
