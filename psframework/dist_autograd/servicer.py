"""DistAutogradService: what other processes ask of a backward's part here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from psframework.dist_autograd.ids import ContextId, TensorsId
from psframework.errors import DeadlineExceeded, PermissionDenied, WireError
from psframework.proto.v1 import dist_autograd_pb2 as pb
from psframework.rpc.call import Call
from psframework.rpc.service import Method
from psframework.rpc.status import detail_to_error
from psframework.rpc.values import arguments
from psframework.rpc.values.journey import Journey

if TYPE_CHECKING:
    from psframework.dist_autograd.backward import Backward
    from psframework.dist_autograd.context import Contexts
    from psframework.dist_autograd.pairs import Sent

SERVICE = "psframework.proto.v1.DistAutogradService"


class Backwards(Protocol):
    """The backwards of this process."""

    @property
    def incarnation(self) -> int: ...
    @property
    def contexts(self) -> Contexts: ...
    def backward(self, id: pb.BackwardId) -> Backward: ...
    def fail(self, id: pb.BackwardId, error: Exception) -> None: ...
    def release(self, id: ContextId, *, error: Exception | None) -> None: ...
    def release_below(self, creator: int, counter: int) -> None: ...
    async def outline(self, id: ContextId, limit: int) -> pb.OutlineReply: ...


class DistAutogradService:
    """The servicer.

    Args:
        backwards: those of this process.
    """

    name = SERVICE

    def __init__(self, backwards: Backwards) -> None:
        self._backwards = backwards

    def methods(self) -> Sequence[Method]:
        """The methods of DistAutogradService."""
        return [
            Method("Discover", pb.DiscoverRequest, pb.DiscoverReply, self.discover),
            Method("Pass", pb.PassRequest, pb.PassReply, self.pass_back),
            Method("Survey", pb.SurveyRequest, pb.SurveyReply, self.survey),
            Method("Release", pb.ReleaseRequest, pb.ReleaseReply, self.release),
            Method("Live", pb.LiveRequest, pb.LiveReply, self.live),
            Method("Outline", pb.OutlineRequest, pb.OutlineReply, self.outline),
        ]

    async def discover(self, request: pb.DiscoverRequest, call: Call) -> pb.DiscoverReply:
        """Finds out what takes part here and below."""
        _check_session(call)
        for each in request.parts:
            self._sent(request.backward, each.message, call)
        if not request.parts:
            raise WireError("a discovery of nothing")
        await self._backwards.backward(request.backward).discover(request, call.deadline)
        return pb.DiscoverReply()

    async def pass_back(self, request: pb.PassRequest, call: Call) -> pb.PassReply:
        """Takes gradients, and runs what depends on them."""
        _check_session(call)
        parts = await call.payload.whole() if call.payload.sizes else []
        sent = self._sent(request.backward, request.message, call)
        backward = self._backwards.backward(request.backward)
        journey = Journey(call.peer, outgoing=False)
        gradients = arguments.decode(request.gradients, parts, journey, authorize=arguments.no_modules)
        if type(gradients) is not tuple:
            raise WireError("gradients come as a tuple")
        backward.give(sent, gradients)
        del gradients, parts
        if backward.engaged:
            return pb.PassReply()
        try:
            await backward.engage(call.deadline)
        except BaseException as error:
            gone = DeadlineExceeded(
                "the backward was given up: its deadline passed, or its caller was cancelled"
            )
            self._backwards.fail(request.backward, error if isinstance(error, Exception) else gone)
            raise
        return pb.PassReply(reports=backward.reports.values())

    def survey(self, request: pb.SurveyRequest, call: Call) -> pb.SurveyReply:
        """What this process waits for in a "fast" backward, and has not used."""
        _check_session(call)
        if not request.backward.fast or call.peer.incarnation != request.backward.context.creator:
            raise WireError("only the creator of a context asks for reports, of fast backwards")
        return pb.SurveyReply(report=self._backwards.backward(request.backward).report())

    def release(self, request: pb.ReleaseRequest, call: Call) -> pb.ReleaseReply:
        """Ends contexts of others; those that this process called inside them hear of it too."""
        _check_session(call)
        sender = call.peer.incarnation
        error = detail_to_error(request.error) if request.HasField("error") else None
        for each in request.contexts:
            id = ContextId(each.creator, each.counter)
            known = self._backwards.contexts.get(id)
            takes_part = known is not None and sender in known.callers
            if sender == id.creator or (takes_part and id.creator != self._backwards.incarnation):
                self._backwards.release(id, error=error)
            elif known is not None:
                raise PermissionDenied(f"{call.peer.name} can't end {known}")
        if request.below:
            self._backwards.release_below(sender, request.below)
        return pb.ReleaseReply()

    def _sent(self, id: pb.BackwardId, message: pb.TensorsId, call: Call) -> Sent:
        """A message that gradients come back for, from the one that it went to."""
        context = self._backwards.contexts.find(ContextId(id.context.creator, id.context.counter))
        sent = context.sent.get(TensorsId(message.sender, message.counter))
        if sent is None:
            raise WireError(f"no message {message.sender}.{message.counter} left this process in {context}")
        if sent.receiver not in (0, call.peer.incarnation):
            raise PermissionDenied(f"the {sent} did not go to {call.peer.name}")
        return sent

    def live(self, request: pb.LiveRequest, call: Call) -> pb.LiveReply:
        """Which of these contexts, opened here, still live."""
        _check_session(call)
        contexts = self._backwards.contexts
        return pb.LiveReply(
            contexts=[each for each in request.contexts if ContextId(each.creator, each.counter) in contexts]
        )

    async def outline(self, request: pb.OutlineRequest, call: Call) -> pb.OutlineReply:
        """The graph of a context here."""
        _check_session(call)
        id = ContextId(request.context.creator, request.context.counter)
        return await self._backwards.outline(id, request.limit)


def _check_session(call: Call) -> None:
    if call.caller is None:
        raise PermissionDenied("distributed autograd needs a session: connect with psframework")
