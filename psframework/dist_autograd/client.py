"""Distributed autograd of one connection: its contexts, its service, and its calls to other processes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Any, Final, Protocol, Self

from psframework.dist_autograd.backward import Backward
from psframework.dist_autograd.context import Context, Contexts
from psframework.dist_autograd.engine import Gradients
from psframework.dist_autograd.ids import ContextId
from psframework.dist_autograd.outline import outline
from psframework.dist_autograd.pace import Pace
from psframework.dist_autograd.pairs import Received
from psframework.dist_autograd.passenger import PASSENGER
from psframework.dist_autograd.servicer import SERVICE, DistAutogradService
from psframework.errors import ContextClosed, PeerLost, PsfError
from psframework.proto.v1 import dist_autograd_pb2 as pb
from psframework.rpc.compute import compute
from psframework.rpc.deadline import Deadline
from psframework.rpc.functions.errand import Errand, Operation
from psframework.rpc.functions.remote_client import Remote
from psframework.rpc.session.agent import Agent
from psframework.rpc.status import error_to_detail
from psframework.rpc.values import arguments
from psframework.rpc.values.journey import Journey

log = logging.getLogger("psframework.dist_autograd")

RELEASE_SECONDS: Final = 10.0
ASK_SECONDS: Final = 5.0  # one lease


def _itself(reply: Any, parts: Sequence[memoryview], journey: Journey) -> Any:
    return reply


DISCOVER: Final = Operation(f"/{SERVICE}/Discover", pb.DiscoverReply, _itself)
SURVEY: Final = Operation(f"/{SERVICE}/Survey", pb.SurveyReply, _itself, lambda request: True)
PASS: Final = Operation(f"/{SERVICE}/Pass", pb.PassReply, _itself)
RELEASE: Final = Operation(f"/{SERVICE}/Release", pb.ReleaseReply, _itself, lambda request: True)
LIVE: Final = Operation(f"/{SERVICE}/Live", pb.LiveReply, _itself, lambda request: True)
OUTLINE: Final = Operation(f"/{SERVICE}/Outline", pb.OutlineReply, _itself, lambda request: True)


class Lost(Protocol):
    """A member, as `membership.on_lost` tells of it."""

    @property
    def incarnation(self) -> int: ...


class Directory(Protocol):
    """Knows the members."""

    def has_ended(self, incarnation: int, /) -> bool:
        """Whether the view says that this life of a member is over; False too if it does not know."""


class DistAutograd:
    """The contexts of one connection. An async context manager; part of a `Cluster`.

    Its `lost` is a hook for the membership.

    Args:
        agent: this process's sessions; the service is mounted there.
        remote: the way to members.
        directory: knows who has died.
    """

    def __init__(self, agent: Agent, remote: Remote, directory: Directory) -> None:
        self._agent = agent
        self._directory = directory
        self._routes = remote.routes
        self.name = agent.identity.name
        self.incarnation = agent.identity.incarnation
        self.contexts = Contexts(self.incarnation)
        self.pace = Pace()
        self._running: dict[tuple[ContextId, int], Backward] = {}
        self._releases: set[asyncio.Future[Any]] = set()
        agent.mount(DistAutogradService(self))

    async def __aenter__(self) -> Self:
        PASSENGER.add(self)
        self._agent.spawn(self._ask_creators())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for context in self.contexts:
            self._end(context.id, "has ended with its connection")
        PASSENGER.remove(self)

    async def close(self, timeout: float) -> None:
        """Ends all contexts that were opened here, and waits a moment until others know."""
        for context in self.contexts:
            if context.id.creator == self.incarnation:
                self.release(context.id, "has ended with its connection")
        if self._releases:
            await asyncio.wait(self._releases, timeout=timeout)

    def incarnation_of(self, name: str) -> int:
        """Which life of that member is known here; 0 if none is."""
        info = self._routes.info(name)
        return info.incarnation if info is not None else 0

    # Contexts

    def open(self) -> Context:
        """A new context."""
        return self.contexts.open(self.name)

    def release(self, id: ContextId, why: str = "has ended", error: Exception | None = None) -> None:
        """A context has ended: here, and wherever calls inside it went from here."""
        context = self._end(id, why, error)
        if context is None:
            return
        request = pb.ReleaseRequest(below=self.contexts.oldest)
        if error is not None:
            request.error.CopyFrom(error_to_detail(error))
        request.contexts.add(creator=id.creator, counter=id.counter)
        if id.creator != self.incarnation:
            request.below = 0
        for name in context.peers:
            if name not in (self.name, context.creator):
                release = self._send(RELEASE, request, name, None, Deadline.after(RELEASE_SECONDS))
                self._releases.add(release)
                release.add_done_callback(self._released)

    def release_below(self, creator: int, counter: int) -> None:
        """All contexts of a creator below a number have ended, as it says itself."""
        for context in self.contexts:
            if context.id.creator == creator and context.id.counter < counter:
                self.release(context.id)
        self.contexts.end_below(creator, counter)

    def lost(self, member: Lost, reason: str) -> None:
        """A member is dead (one that is only stalled is not): its contexts have ended."""
        if str(reason) == "stalled":
            return
        for context in self.contexts:
            if context.id.creator == member.incarnation:
                self.release(context.id, f"has ended: {context.creator} is gone")

    def _end(self, id: ContextId, why: str, error: Exception | None = None) -> Context | None:
        if error is not None:
            why = f"has failed: {error}"
        context = self.contexts.end(id, why)
        if context is not None:
            for key in [key for key in self._running if key[0] == id]:
                backward = self._running.pop(key)
                backward.stop(error or ContextClosed(f"{context} {why}"))
                backward.close()
        return context

    def _released(self, release: asyncio.Future[Any]) -> None:
        self._releases.discard(release)
        error = None if release.cancelled() else release.exception()
        if error is not None and not isinstance(error, PeerLost):
            log.debug("%s: a context could not be released: %s", self.name, error)

    async def _ask_creators(self) -> None:
        """Now and then: contexts of others whose creators know them no more have ended."""
        while True:
            await asyncio.sleep(ASK_SECONDS)
            creators: dict[tuple[str, int], list[ContextId]] = {}
            for context in self.contexts:
                if context.id.creator != self.incarnation:
                    creators.setdefault((context.creator, context.id.creator), []).append(context.id)
            for (name, incarnation), ids in creators.items():
                await self._ask_creator(name, incarnation, ids)

    async def _ask_creator(self, name: str, incarnation: int, ids: Iterable[ContextId]) -> None:
        gone = f"has ended: {name} is gone"
        if self._directory.has_ended(incarnation):  # and a call of it came late
            for id in ids:
                self.release(id, gone)
            return
        request = pb.LiveRequest()
        for id in ids:
            request.contexts.add(creator=id.creator, counter=id.counter)
        try:
            reply = await self._send(LIVE, request, name, incarnation, Deadline.after(ASK_SECONDS))
        except PeerLost as error:
            if error.reason == "incarnation":
                for id in ids:
                    self.release(id, gone)
            return
        except PsfError:  # not answered: ask again; the membership knows if it is dead
            return
        living = {ContextId(each.creator, each.counter) for each in reply.contexts}
        for id in ids:
            if id not in living:
                self.release(id)

    # Backwards

    def backward(self, id: pb.BackwardId) -> Backward:
        """This process's part in a backward of a context that it takes part in."""
        context = self.contexts.find(ContextId(id.context.creator, id.context.counter))
        key = (context.id, id.number)
        found = self._running.get(key)
        if found is None:
            for old in [old for old in self._running if old[0] == context.id and old[1] < id.number]:
                self._running.pop(old).close()
            found = self._running[key] = Backward(context, id, self)
        return found

    def fail(self, id: pb.BackwardId, error: Exception) -> None:
        """A backward has failed here: so has its context."""
        self.release(ContextId(id.context.creator, id.context.counter), error=error)

    async def outline(self, id: ContextId, limit: int) -> pb.OutlineReply:
        """The graph of a context in this process; a larger one than `limit` is folded."""
        return await compute(outline, self.contexts.find(id), limit=limit)

    def outline_of(
        self, name: str, id: ContextId, limit: int, deadline: Deadline
    ) -> asyncio.Future[pb.OutlineReply]:
        """The graph of a context in another process."""
        request = pb.OutlineRequest(limit=limit)
        request.context.creator, request.context.counter = id
        return self._send(OUTLINE, request, name, None, deadline)

    # As the Wire of backwards

    def discover(
        self, peer: tuple[str, int], request: pb.DiscoverRequest, deadline: Deadline
    ) -> asyncio.Future[Any]:
        """Tells a member which of its messages take part."""
        return self._send(DISCOVER, request, *peer, deadline)

    def survey(
        self, name: str, request: pb.SurveyRequest, deadline: Deadline
    ) -> asyncio.Future[pb.SurveyReply]:
        """Asks a member for its report."""
        return self._send(SURVEY, request, name, None, deadline)

    def pass_back(
        self, message: Received, request: pb.PassRequest, gradients: Gradients, deadline: Deadline
    ) -> asyncio.Future[pb.PassReply]:
        """Sends the gradients of a message to where it came from."""
        journey = Journey()
        arguments.encode(gradients, journey, "gradients", request.gradients)
        return self._send(PASS, request, *message.peer, deadline, journey)

    def _send(
        self,
        operation: Operation,
        request: Any,
        name: str,
        incarnation: int | None,
        deadline: Deadline,
        journey: Journey | None = None,
    ) -> asyncio.Future[Any]:
        errand = Errand(self._routes, operation, request, journey or Journey(), deadline)
        self._routes.send(errand, name, incarnation)
        return errand.future
