"""One backward, as one process drives it: asks, runs, passes gradients on, and knows when all of it is done.

A process is engaged by the first message of a backward (or by being its root), and answers that one only when
nothing is left to run here and all messages that it sent itself are answered. Those that come meanwhile are
answered at once. So the root's own end means that everybody is done (Dijkstra and Scholten's algorithm).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from itertools import zip_longest
from threading import get_ident
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol

from psframework.dist_autograd.discovery import Asked, Discovery
from psframework.dist_autograd.engine import Gradients, Leave, LocalPart
from psframework.dist_autograd.ids import TensorsId
from psframework.dist_autograd.pace import Pace
from psframework.dist_autograd.pairs import Received, Sent
from psframework.errors import PsfError
from psframework.proto.v1 import dist_autograd_pb2 as pb
from psframework.rpc.compute import compute
from psframework.rpc.deadline import Deadline
from psframework.rpc.status import detail_to_error, error_to_detail

if TYPE_CHECKING:
    from psframework.dist_autograd.context import Context

P = ParamSpec("P")


class Wire(Protocol):
    """What a backward needs of the process that it runs in."""

    @property
    def name(self) -> str: ...
    @property
    def incarnation(self) -> int: ...
    @property
    def pace(self) -> Pace: ...
    def discover(
        self, peer: tuple[str, int], request: pb.DiscoverRequest, deadline: Deadline
    ) -> asyncio.Future[Any]: ...
    def survey(
        self, name: str, request: pb.SurveyRequest, deadline: Deadline
    ) -> asyncio.Future[pb.SurveyReply]: ...
    def pass_back(
        self, message: Received, request: pb.PassRequest, gradients: Gradients, deadline: Deadline
    ) -> asyncio.Future[pb.PassReply]: ...


class Backward:
    """This process's part in one backward of a context.

    Args:
        context: whose backward it is.
        id: its name on the wire.
        wire: the way to other processes.
    """

    def __init__(self, context: Context, id: pb.BackwardId, wire: Wire) -> None:
        self.context = context
        self.id = id
        self._wire = wire
        self._discovery = Discovery(context)
        self._part: LocalPart | None = None
        self._arrived: list[tuple[Sent, Gradients]] = []
        self._calls: set[asyncio.Future[pb.PassReply]] = set()
        self._stir = asyncio.Event()
        self._walking = asyncio.Lock()
        self._ready = False  # something came since the last run
        self._error: BaseException | None = None
        self._serial = 0
        self._deadline = Deadline.NEVER
        self.engaged = False
        self.reports: dict[int, pb.Report] = {}

    @property
    def part(self) -> LocalPart:
        """What runs here; from its first use on, what takes part is settled."""
        if self._part is None:
            context, found = self.context, self._discovery
            if self.id.fast:
                messages = [message for message in context.received.values() if not message.spent]
                everything = {message: set(message.orders) for message in messages}
                sent = [each for each in context.sent.values() if each.node.backward is not None]
                self._part = LocalPart(context, sent, everything, retain=self.id.retain)
            else:
                self._part = LocalPart(context, found.reached, found.asked, retain=self.id.retain)
        return self._part

    # What takes part

    async def discover_from(self, keys: Iterable[Any], deadline: Deadline) -> None:
        """The root's sweep: returns when everybody who takes part knows what."""
        await self._ask(await self._walk(self._discovery.from_roots, keys), deadline)

    async def discover(self, request: pb.DiscoverRequest, deadline: Deadline) -> None:
        """Somebody got messages from here that take part; returns when all that these depend on is told."""
        await self._ask(await self._walk(_from_messages, self._discovery, request.parts), deadline)

    async def _walk(self, walk: Callable[P, Asked], *args: P.args, **kwargs: P.kwargs) -> Asked:
        """Walks; one after the other, since some do so in the compute thread."""
        async with self._walking:
            kind = "walk", len(self.context.sent), len(self.context.received)
            return await self._wire.pace.run(kind, walk, *args, **kwargs)

    async def _ask(self, asked: Asked, deadline: Deadline) -> None:
        requests: dict[tuple[str, int], pb.DiscoverRequest] = {}
        for message, tensors in asked.items():
            request = requests.setdefault(message.peer, pb.DiscoverRequest(backward=self.id))
            id = pb.TensorsId(sender=message.id.sender, counter=message.id.counter)
            request.parts.add(message=id, tensors=sorted(tensors))
        calls = [self._wire.discover(peer, request, deadline) for peer, request in requests.items()]
        try:
            for call in calls:
                await call
        except BaseException:
            for call in calls:
                call.cancel()
            raise

    # Running

    def start(self, gradients: dict[Any, Any], heap: list[Any]) -> None:
        """Begins at roots here."""
        self.part.start(gradients, heap)
        self._ready = True

    def give(self, sent: Sent, gradients: Gradients) -> None:
        """Gradients of a message from here have come. WireError if they can't be right."""
        sent.check(gradients)
        self._arrived.append((sent, gradients))
        self._ready = True
        self._stir.set()

    def stop(self, error: BaseException) -> None:
        """Whoever waits in `engage` gets the error."""
        self._error = self._error or error
        self._stir.set()

    async def engage(self, deadline: Deadline) -> None:
        """Runs until there is nothing left to do here, and all that was caused elsewhere is done.

        Raises:
            Exception: what failed, here or elsewhere. PeerLost for a process that died.
        """
        self.engaged, self._deadline = True, deadline
        try:
            while True:
                self._stir.clear()
                if self._error is not None:
                    raise self._error
                if self._ready:
                    await self._run()
                elif self._calls:
                    await self._stir.wait()
                else:
                    break
        except BaseException as error:
            self.stop(error)
            for call in tuple(self._calls):
                call.cancel()
            raise
        finally:
            self.engaged = False
        if self.id.fast:
            self._merge([self.report()])

    def close(self) -> None:
        """It is over, one way or the other."""
        if self._part is not None:
            self._part.close()

    async def _run(self) -> None:
        self._ready = False
        arrived, self._arrived = self._arrived, []
        loop, here = asyncio.get_running_loop(), get_ident()

        def leave(message: Received, gradients: Gradients) -> None:
            if get_ident() == here:
                self._pass(message, gradients)
            else:
                loop.call_soon_threadsafe(self._pass, message, gradients)

        part, found = self.part, self._discovery
        try:
            if self.id.fast or found.users:
                await compute(_run, part, arrived, leave)
            else:
                kind = "run", found.kind, sum(sent.nbytes for sent, _ in arrived)
                await self._wire.pace.run(kind, _run, part, arrived, leave)
        except Exception as error:
            raise self._error or _located(error, self._wire.name) from error

    def _pass(self, message: Received, gradients: Gradients) -> None:
        if self._error is not None or not self.engaged:
            return
        id = pb.TensorsId(sender=message.id.sender, counter=message.id.counter)
        request = pb.PassRequest(backward=self.id, message=id)
        call = self._wire.pass_back(message, request, gradients, self._deadline)
        self._calls.add(call)
        call.add_done_callback(self._answered)

    def _answered(self, call: asyncio.Future[pb.PassReply]) -> None:
        self._calls.discard(call)
        if not call.cancelled():
            error = call.exception()
            if error is not None:
                self.stop(error)
            else:
                self._merge(call.result().reports)
        self._stir.set()

    # What a "fast" backward still waits for

    @property
    def waits(self) -> list[str]:
        """Messages of all processes reached so far that got no gradient, for people; the likely causes first.

        Of a process's own messages the newest holds back all others, so each process's newest come before any
        process's second.
        """
        reports = [report for _, report in sorted(self.reports.items())]
        turns = zip_longest(*(report.waits for report in reports))
        return [
            *(message for report in reports for message in report.unused),
            *(message for turn in turns for message in turn if message is not None),
        ]

    async def survey(self, deadline: Deadline) -> None:
        """Asks processes that no gradient has reached, and those that they called, for their reports."""
        known = {report.name for report in self.reports.values()}
        while names := {name for report in self.reports.values() for name in report.peers} - known:
            known |= names
            request = pb.SurveyRequest(backward=self.id)
            calls = [self._wire.survey(name, request, deadline) for name in sorted(names)]
            for reply in await asyncio.gather(*calls, return_exceptions=True):
                if isinstance(reply, pb.SurveyReply):  # else it is gone, or the context never reached it
                    self._merge([reply.report])

    def report(self) -> pb.Report:
        """What this process waits for, and has not used."""
        part, self._serial = self.part, self._serial + 1
        own = pb.Report(incarnation=self._wire.incarnation, serial=self._serial, name=self._wire.name)
        own.peers.extend(self.context.peers)
        own.waits.extend(map(str, reversed(part.waits)))
        own.unused.extend(map(str, part.never_used))
        return own

    def _merge(self, reports: Iterable[pb.Report]) -> None:
        for report in reports:
            known = self.reports.get(report.incarnation)
            if known is None or known.serial < report.serial:
                self.reports[report.incarnation] = report


def _from_messages(discovery: Discovery, parts: Iterable[pb.Part]) -> Asked:
    asked: Asked = {}
    for each in parts:
        id = TensorsId(each.message.sender, each.message.counter)
        for message, tensors in discovery.from_message(id, each.tensors).items():
            asked.setdefault(message, set()).update(tensors)
    return asked


def _run(part: LocalPart, arrived: list[tuple[Sent, Gradients]], leave: Leave) -> None:
    for sent, gradients in arrived:
        part.give(sent, gradients)
    part.run(leave)


def _located(error: Exception, name: str) -> PsfError:
    """The error as others will see it, with the member in which it happened."""
    detail = error_to_detail(error)
    detail.message += f" (in a backward on {name})"
    return detail_to_error(detail)
