"""All references of one connection: makes them, uses them, and lets go of them in the end."""

from __future__ import annotations

import asyncio
import logging
import weakref
from collections.abc import Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Any, Final, Protocol, Self

from psframework.errors import ContextClosed, DeadlineExceeded, PeerLost, PsfError
from psframework.proto.v1 import rref_pb2 as pb
from psframework.proto.v1.remote_pb2 import InvokeRequest
from psframework.rpc import registry
from psframework.rpc.call import PeerInfo
from psframework.rpc.deadline import Deadline
from psframework.rpc.functions.errand import Errand, Operation
from psframework.rpc.functions.future import Future
from psframework.rpc.functions.remote_client import Function, Remote, deadline, target
from psframework.rpc.functions.remote_service import RemoteService
from psframework.rpc.functions.remote_stream import RemoteStream, opening, stream_number
from psframework.rpc.functions.routes import Directory
from psframework.rpc.functions.scope import leaving
from psframework.rpc.functions.unpacking import value_of
from psframework.rpc.session.agent import Agent
from psframework.rpc.session.peer import Peer
from psframework.rpc.values import arguments
from psframework.rpc.values.journey import Journey, Outcome
from psframework.rref.control import SERVICE, Control
from psframework.rref.encoding import fork_message, rref_message
from psframework.rref.handle import MethodCall, RRef
from psframework.rref.listing import RRefInfo, from_info, listing
from psframework.rref.passenger import PASSENGER
from psframework.rref.servicer import RRefService
from psframework.rref.table import Home, Ref, Table
from psframework.rref.user import Fork
from psframework.rref.waiters import fresh

log = logging.getLogger("psframework.rref")


def _nothing(reply: pb.CreateReply, parts: Sequence[memoryview], journey: Journey) -> None:
    return None


def _value(reply: Any, parts: Sequence[memoryview], journey: Journey) -> Any:
    return value_of(reply.value, parts, journey)


def _infos(reply: pb.ListRRefsReply, parts: Sequence[memoryview], journey: Journey) -> list[RRefInfo]:
    return [from_info(info) for info in reply.rrefs]


CREATE: Final = Operation(f"/{SERVICE}/Create", pb.CreateReply, _nothing)
FETCH: Final = Operation(f"/{SERVICE}/Fetch", pb.FetchReply, _value, lambda request: True)
CALL: Final = Operation(f"/{SERVICE}/CallMethod", pb.CallMethodReply, _value)
STREAM: Final = Operation(f"/{SERVICE}/StreamMethod", pb.StreamMethodReply, stream_number)
LIST: Final = Operation(f"/{SERVICE}/ListRRefs", pb.ListRRefsReply, _infos, lambda request: True)


class Lost(Protocol):
    """A member, as `membership.on_lost` tells of it."""

    @property
    def incarnation(self) -> int: ...


class Members(Directory, Protocol):
    """Knows the members, and whose lives are over."""

    def has_ended(self, incarnation: int, /) -> bool:
        """Whether the membership says that this life of a member is over; False too if it does not know."""


class RRefs:
    """The references of one connection. An async context manager; part of a `Cluster`.

    Its `lost` and `evicted` are hooks for the membership.

    Args:
        agent: this process's sessions; the service is mounted there.
        remote: calls of functions.
        directory: knows the members.
        service: runs functions for others.
    """

    def __init__(self, agent: Agent, remote: Remote, directory: Members, service: RemoteService) -> None:
        self._agent = agent
        self._directory = directory
        self._routes = remote.routes
        self._control = Control(self._routes, directory.has_ended)
        self.table = Table(agent.identity, self._control.post)
        self._control.serve(self.table)
        self._watched: weakref.WeakSet[Peer] = weakref.WeakSet()
        agent.mount(RRefService(self.table, service))

    async def __aenter__(self) -> Self:
        PASSENGER.add(self)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.abort()

    # Making references

    def remote(
        self,
        to: Any,
        fn: Function,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        timeout: float | None = None,
    ) -> RRef:
        """Calls a function (or a class) of a member; the result stays there. Sends, and returns at once.

        Args:
            to: a name, a member, or an RRef, whose owner is meant.
            fn: the function, or the name it is registered under.
            args: positional arguments.
            kwargs: arguments with names.
            timeout: seconds that the creation may take; None: 60; 0: no limit.

        Raises:
            NotRegistered: `fn` is no registered function.
            TypeError: an argument can't travel.
            PeerLost, NotRegistered: no such member lives.
        """
        owner, until = self._member(*target(to)), deadline(timeout)
        call, journey = _pack(registry.name_of(fn), args, kwargs or {}, owner)
        return self._create(owner, pb.CreateRequest(call=call), journey, until)

    def rref(self, value: Any) -> RRef:
        """A reference to a value of this process; the value is not copied."""
        self._check()
        entry = self.table.adopt()
        self.table.finish(entry, value)
        return RRef(self, Home(entry.rref, entry))

    def list(self) -> Sequence[RRefInfo]:
        """The values of this process, and who refers to them."""
        return listing(self.table)

    def list_of(self, to: Any, timeout: float | None = None) -> Future[Sequence[RRefInfo]]:
        """The values of another member, and who refers to them."""
        member = self._member(*target(to))
        errand = Errand(self._routes, LIST, pb.ListRRefsRequest(), Journey(), deadline(timeout))
        self._routes.send(errand, member.name, member.incarnation)
        return errand.future

    # What references ask for

    async def fetch(self, rref: RRef, timeout: float | None) -> Any:
        """The value."""
        ref, until = rref.ref, deadline(timeout)
        if isinstance(ref, Home):
            return await self.table.value(ref.rref, None, until)
        request = pb.FetchRequest(rref=rref_message(ref.rref), fork=fork_message(ref.id))
        request.scope = leaving(ref.owner_name)
        return await self._send(FETCH, request, rref, Journey(self._owner(rref)), until)

    async def confirm(self, rref: RRef) -> None:
        """Waits until the owner knows the reference."""
        ref = rref.ref
        if isinstance(ref, Home):
            await self.table.value(ref.rref, None, Deadline.NEVER)
        elif ref.is_pending:
            await self.table.waiters.wait((ref.owner, ref.id), Deadline.NEVER, "it has no deadline")

    def call_method(self, rref: RRef, call: MethodCall) -> Future[Any]:
        """Runs a method where the value lives."""
        until = deadline(call.timeout)
        invoke, journey = _pack(call.method, call.args, call.kwargs, self._owner(rref))
        request = pb.CallMethodRequest(rref=rref_message(rref.id), call=invoke)
        if isinstance(rref.ref, Fork):
            request.fork.CopyFrom(fork_message(rref.ref.id))
        return self._send(CALL, request, rref, journey, until)

    def stream_method(self, rref: RRef, call: MethodCall) -> RemoteStream:
        """Runs a method that is a generator where the value lives."""
        deadline(call.timeout)  # raises if it can't be one
        invoke, journey = _pack(call.method, call.args, call.kwargs, self._owner(rref))
        request = pb.StreamMethodRequest(rref=rref_message(rref.id), open=opening(invoke))
        if isinstance(rref.ref, Fork):
            request.fork.CopyFrom(fork_message(rref.ref.id))
        journey.notes["on"] = rref  # until the generator runs, which holds the value itself
        target = rref.owner_name(), rref.owner_incarnation
        return RemoteStream(self._routes, target, (STREAM, request), journey, partial(deadline, call.timeout))

    def create_on(self, rref: RRef, call: MethodCall) -> RRef:
        """Runs a method where the value lives; its result stays there."""
        owner, until = self._owner(rref), deadline(call.timeout)
        invoke, journey = _pack(call.method, call.args, call.kwargs, owner)
        request = pb.CreateRequest(call=invoke, on=rref_message(rref.id))
        if isinstance(rref.ref, Fork):
            request.on_fork.CopyFrom(fork_message(rref.ref.id))
        journey.notes["on"] = rref  # it lives until the call has ended
        return self._create(owner, request, journey, until)

    def is_mine(self, peer: PeerInfo) -> bool:
        """Whether a session of this process has `peer` at its other end."""
        found = self._agent.peer_for(peer.name, peer.incarnation)
        return peer is self._agent.identity or (found is not None and found.info is peer)

    def ended(self, peer: PeerInfo) -> None:
        """A message with references was answered, or is an answer: if the session ends, they are in doubt."""
        if peer.incarnation == self.table.identity.incarnation:
            return
        sessions = [p for p in self._agent.peers if p.info.incarnation == peer.incarnation]
        if not sessions:
            self._cut(peer.incarnation)
        for session in sessions:
            if session not in self._watched:
                self._watched.add(session)
                session.when_lost(partial(self._cut, peer.incarnation))

    def _cut(self, incarnation: int) -> None:
        self.table.apply(self.table.account.cut(incarnation))

    # What the membership says

    def lost(self, member: Lost, reason: str) -> None:
        """A member is dead (one that is only stalled is not)."""
        if str(reason) != "stalled":
            self.table.lost(member.incarnation, "closed" if str(reason) == "left" else str(reason))
            self._control.forget(member.incarnation)

    def evicted(self, error: PsfError) -> None:
        """This process is dead for all others."""
        self.table.evicted(error)

    # The end

    async def close(self, timeout: float = 30.0) -> Sequence[str]:
        """Lets go of every reference, and waits until their owners have confirmed that.

        Returns:
            What could not be settled, for people: owners that did not answer, and values of this process that
            others still refer to. Each is logged as a warning.
        """
        table, until = self.table, Deadline.after(timeout)
        if table.closed is None:
            table.closed = ContextClosed(f"{table.identity.name} has left the cluster")
        table.collect()
        for fork in table.account.user.forks:
            table.drop(fork)
        self._control.hurry()
        while self._owes() and not until.expired:
            try:
                await table.waiters.wait(None, until, "references were not confirmed in time")
            except DeadlineExceeded:
                break
        problems = self._problems()
        for problem in problems:
            log.warning("%s: %s", table.identity.name, problem)
        self.abort()
        return problems

    def abort(self) -> None:
        """Ends without waiting: others learn from the membership that this process is gone."""
        if self.table.closed is None:
            self.table.closed = ContextClosed(f"{self.table.identity.name} has left the cluster")
        self._control.close()
        self.table.end()
        PASSENGER.remove(self)

    def _owes(self) -> bool:
        account = self.table.account
        return bool(len(account.user) or account.debtors)

    def _problems(self) -> Sequence[str]:
        account, names = self.table.account, self.table.names
        problems = []
        for owner in sorted({*account.user.owners, *account.debtors}):
            forks = sum(fork.owner == owner for fork in account.user.forks)
            failure = self._control.failure(owner)
            problems.append(
                f"{names.get(owner, owner)} did not confirm that {forks} references are deleted"
                + (f" ({failure})" if failure else "")
            )
        for info in listing(self.table):
            if info.holders:
                who = ", ".join(holder.name for holder in info.holders)
                problems.append(f"RRef {info.id} ({info.type}) is lost with this process, but held by {who}")
        return problems

    # Parts

    def _create(self, owner: PeerInfo, request: pb.CreateRequest, journey: Journey, until: Deadline) -> RRef:
        ref: Ref
        if owner.incarnation == self.table.identity.incarnation:
            entry = self.table.adopt()
            self.table.account.owner.acquire(entry)  # until it is made, as a fork elsewhere
            ref = Home(entry.rref, entry)
        else:
            account = self.table.account
            ref = account.user.create(account.new_id(), owner.incarnation, owner.name)
            self.table.meet(owner.incarnation, owner.name)
            request.fork.CopyFrom(fork_message(ref.id))
            if ref.error is not None:  # its owner is dead, or this process
                journey.end(Outcome.REFUSED)
                return RRef(self, ref)
        request.rref.CopyFrom(rref_message(ref.rref))
        errand = Errand(self._routes, CREATE, request, journey, until)
        errand.future.add_done_callback(partial(self._created, ref))
        self._routes.send(errand, owner.name, owner.incarnation)
        return RRef(self, ref)

    def _created(self, ref: Ref, done: asyncio.Future[None]) -> None:
        error = PeerLost("the connection was closed") if done.cancelled() else done.exception()
        table = self.table
        if isinstance(ref, Home):
            entry = table.account.owner.find(ref.rref)
            if error is not None and entry is not None:
                table.finish(entry, error=error)
            table.apply(table.account.owner.drop(ref.rref))
        elif error is None:
            table.apply(table.account.user.created(ref))
        else:
            table.apply(table.account.user.broken(ref, fresh(error)))

    def _send(
        self, operation: Operation, request: Any, rref: RRef, journey: Journey, until: Deadline
    ) -> Future[Any]:
        journey.notes["on"] = rref  # it lives until the call has ended
        errand = Errand(self._routes, operation, request, journey, until)
        self._routes.send(errand, rref.owner_name(), rref.owner_incarnation)
        return errand.future

    def _owner(self, rref: RRef) -> PeerInfo:
        return PeerInfo(rref.owner_name(), "", "", rref.owner_incarnation)

    def _member(self, name: str, incarnation: int | None) -> PeerInfo:
        self._check()
        info = self._routes.info(name, incarnation)
        if info is None:
            address = self._directory.address_of(name)  # says what is wrong, or that it has come meanwhile
            info = PeerInfo(name, address.role, "", address.incarnation)
        if incarnation not in (None, info.incarnation):
            text = f"{name} has begun another life"
            raise PeerLost(text, peer=name, reason="incarnation", may_have_run=False)
        return info

    def _check(self) -> None:
        self.table.check_thread()
        if self.table.closed is not None:
            raise ContextClosed(str(self.table.closed))


def _pack(
    function: str, args: Sequence[Any], kwargs: Mapping[str, Any], owner: PeerInfo
) -> tuple[InvokeRequest, Journey]:
    scope, journey = leaving(owner.name), Journey(owner)
    journey.about = function
    call = arguments.encode_call(args, kwargs, journey)
    return InvokeRequest(function=function, arguments=call, scope=scope), journey
