"""RRefService: values that this process keeps for others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from psframework.errors import DeadlineExceeded, PeerLost, WireError
from psframework.proto.v1 import rref_pb2 as pb
from psframework.proto.v1.remote_pb2 import InvokeRequest
from psframework.rpc import registry
from psframework.rpc.call import Call
from psframework.rpc.functions.context import Running
from psframework.rpc.functions.remote_service import RemoteService, caller_of, take_arguments
from psframework.rpc.functions.scope import entering
from psframework.rpc.registry import Entry as Function
from psframework.rpc.service import Method
from psframework.rpc.status import error_to_detail
from psframework.rref.control import SERVICE, heed
from psframework.rref.encoding import fork_id, rref_id, to_messages
from psframework.rref.ids import ForkId, RRefId
from psframework.rref.listing import listing, to_info
from psframework.rref.owner import Entry
from psframework.rref.table import Table

_Use = pb.CreateRequest | pb.FetchRequest | pb.CallMethodRequest | pb.StreamMethodRequest


class RRefService:
    """The servicer.

    Args:
        table: the values.
        remote: runs functions and packs results.
    """

    name = SERVICE

    def __init__(self, table: Table, remote: RemoteService) -> None:
        self._table = table
        self._remote = remote

    def methods(self) -> Sequence[Method]:
        """The methods of RRefService."""
        return [
            Method("Create", pb.CreateRequest, pb.CreateReply, self.create),
            Method("Fetch", pb.FetchRequest, pb.FetchReply, self.fetch),
            Method("CallMethod", pb.CallMethodRequest, pb.CallMethodReply, self.call_method),
            Method("StreamMethod", pb.StreamMethodRequest, pb.StreamMethodReply, self.stream_method),
            Method("Exchange", pb.ExchangeRequest, pb.ExchangeReply, self.exchange),
            Method("ListRRefs", pb.ListRRefsRequest, pb.ListRRefsReply, self.list_rrefs),
        ]

    async def create(self, request: pb.CreateRequest, call: Call) -> pb.CreateReply:
        """Runs a function and keeps what it returns, or its error."""
        entry = self._entry(request, call)
        try:
            value = await self._make(request, call)
        except BaseException as error:
            late = DeadlineExceeded("the creation was cancelled: its deadline passed, or its caller gave up")
            self._table.finish(entry, error=error if isinstance(error, Exception) else late)
            raise
        self._table.finish(entry, value)
        return pb.CreateReply()

    async def fetch(self, request: pb.FetchRequest, call: Call) -> pb.FetchReply:
        """Copies a value, once it is there."""
        fork = self._holder(request, call)
        if request.scope:
            entering(request.scope, call.peer)
        value = await self._table.value(rref_id(request.rref), fork, call.deadline)
        if call.room is not None:
            await call.room.cleared()
        reply = pb.FetchReply()
        self._remote.give(value, call, reply.value)
        del value
        if call.reply_sizes:
            await self._remote.settle_parts(call)
        return reply

    async def call_method(self, request: pb.CallMethodRequest, call: Call) -> pb.CallMethodReply:
        """Runs a method of a value, once it is there."""
        fork = self._holder(request, call)
        method = await self._method(rref_id(request.rref), fork, request.call.function, call)
        result = await self._run(method, request.call, call)
        reply = pb.CallMethodReply()
        self._remote.give(result, call, reply.value)
        del result
        if call.reply_sizes:
            await self._remote.settle_parts(call)
        return reply

    async def stream_method(self, request: pb.StreamMethodRequest, call: Call) -> pb.StreamMethodReply:
        """Starts a method of a value that is a generator, once the value is there."""
        fork, opening = self._holder(request, call), request.open
        method = await self._method(rref_id(request.rref), fork, opening.call.function, call)
        return pb.StreamMethodReply(stream=await self._remote.start_stream(method, opening, call))

    def exchange(self, request: pb.ExchangeRequest, call: Call) -> pb.ExchangeReply:
        """What became of references."""
        self._check_caller(call)
        answers, errors = heed(self._table, call.peer, request.messages)
        reply = pb.ExchangeReply(messages=to_messages(answers))
        for index, error in errors:
            reply.errors.add(index=index, error=error_to_detail(error))
        return reply

    def list_rrefs(self, request: pb.ListRRefsRequest, call: Call) -> pb.ListRRefsReply:
        """All values and who refers to them."""
        return pb.ListRRefsReply(rrefs=map(to_info, listing(self._table)))

    async def _make(self, request: pb.CreateRequest, call: Call) -> Any:
        """What a creation asks for: the result of a function, or of a method of another value."""
        invoke = request.call
        if request.HasField("on"):
            fork = self._holder(request, call, "on_fork")
            method = await self._method(rref_id(request.on), fork, invoke.function, call)
        else:
            method = self._remote.executor.allow(invoke.function, call.peer)
        return await self._run(method, invoke, call, views=False)  # the result may keep its arguments

    async def _method(self, rref: RRefId, fork: ForkId | None, name: str, call: Call) -> Function:
        value = await self._table.value(rref, fork, call.deadline)
        method = registry.method_of(value, name)
        self._remote.executor.authorize(method, call.peer)
        return method

    async def _run(
        self, function: Function, request: InvokeRequest, call: Call, *, views: bool = True
    ) -> Any:
        executor, payload = self._remote.executor, call.payload
        with executor.admit(function, call.peer, call.nbytes, call) as admission:
            parts = await payload.whole() if payload.sizes else []
            args, kwargs, waiting = take_arguments(request, parts, call, executor, views=views)
            if waiting is not None:
                args, kwargs = await waiting
            running = Running(caller_of(request, call), call.deadline)
            return await executor.call(function, args, kwargs, running, admission)

    def _entry(self, request: pb.CreateRequest, call: Call) -> Entry:
        """The new value: its caller's, or (without a fork) one of this process, which has it already."""
        rref, table = rref_id(request.rref), self._table
        if request.HasField("fork"):
            entry = table.create(rref, self._fork(request.fork, call), call.peer)
        else:
            self._check_caller(call, own=True)
            entry = table.account.owner.find(rref)
        if entry is not None:
            return entry
        raise DeadlineExceeded(f"RRef {rref} was given up before its creation began")

    def _holder(self, request: _Use, call: Call, field: str = "fork") -> ForkId | None:
        """The caller's reference; None if the caller is this process itself."""
        if request.HasField(field):  # type: ignore[arg-type]
            return self._fork(getattr(request, field), call)
        self._check_caller(call, own=True)
        return None

    def _fork(self, message: pb.ForkId, call: Call) -> ForkId:
        self._check_caller(call)
        fork = fork_id(message)
        if fork.holder != call.peer.incarnation:
            raise WireError(f"fork {fork} is not one of {call.peer.name}'s")
        return fork

    def _check_caller(self, call: Call, *, own: bool = False) -> None:
        account, me, caller = self._table.account, self._table.identity, call.peer.incarnation
        if call.caller is None:
            raise WireError("references need a session: connect with psframework")
        if own and caller != me.incarnation:
            raise WireError("only the owner itself refers to a value without a fork")
        account.check(caller)
        if account.eviction is not None and caller != me.incarnation:
            raise PeerLost(f"{me.name} was declared dead", peer=me.name, reason="lease", may_have_run=False)
