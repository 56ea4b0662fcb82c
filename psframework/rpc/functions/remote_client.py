"""Calls of registered functions of other members: `rpc_async`, `rpc_all`, `rpc_stream`."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from psframework.errors import ArgumentError, NotRegistered
from psframework.proto.v1.remote_pb2 import DescribeReply, DescribeRequest, InvokeReply, InvokeRequest
from psframework.rpc import registry
from psframework.rpc.deadline import Deadline
from psframework.rpc.functions.context import running_deadline
from psframework.rpc.functions.errand import Errand, Operation
from psframework.rpc.functions.future import Future
from psframework.rpc.functions.remote_service import SERVICE
from psframework.rpc.functions.remote_stream import OPEN, RemoteStream, opening
from psframework.rpc.functions.routes import Directory, Routes
from psframework.rpc.functions.scope import leaving
from psframework.rpc.functions.unpacking import value_of
from psframework.rpc.session.agent import Agent
from psframework.rpc.values import arguments
from psframework.rpc.values.journey import Journey, Outcome

DEFAULT_SECONDS: Final = 60.0
Function = Callable[..., Any] | str


def _value(reply: InvokeReply, parts: Sequence[memoryview], journey: Journey) -> Any:
    return value_of(reply.value, parts, journey)


def _pack(
    function: str,
    call: tuple[Sequence[Any], Mapping[str, Any] | None],
    metadata: Mapping[str, str] | None,
    journey: Journey,
) -> InvokeRequest:
    request = InvokeRequest(function=function)
    journey.about = function
    arguments.encode_call(*call, journey, request.arguments)
    if not metadata:
        return request
    try:
        request.metadata.update(metadata)
        return request
    except Exception as error:  # what rides in the arguments stays here
        journey.end(Outcome.REFUSED)
        raise ArgumentError(f"metadata={metadata!r:.200}: a dict of str to str ({error})") from None


def _is_idempotent(request: InvokeRequest) -> bool:
    try:
        return registry.find(request.function).idempotent
    except NotRegistered:  # here; there it may be
        return False


def _itself(reply: DescribeReply, parts: Sequence[memoryview], journey: Journey) -> DescribeReply:
    return reply


DESCRIBE: Final = Operation(f"/{SERVICE}/Describe", DescribeReply, _itself, lambda request: True)
INVOKE: Final = Operation(f"/{SERVICE}/Invoke", InvokeReply, _value, _is_idempotent)


class Remote:
    """Calls to members by name. Part of a `Cluster`.

    Args:
        agent: this process's sessions; RemoteService is among its services.
        directory: knows the members.
    """

    def __init__(self, agent: Agent, directory: Directory) -> None:
        self.routes = Routes(agent, directory)

    def rpc_async(
        self,
        to: Any,
        fn: Function,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        timeout: float | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> Future[Any]:
        """Calls a function of a member: copies the arguments, sends, and returns at once.

        Args:
            to: a name, a member, or an RRef, whose owner is meant.
            fn: the function, or the name it is registered under.
            args: positional arguments.
            kwargs: arguments with names.
            timeout: seconds for queueing, transfer and execution together; None: 60; 0: no limit. A call that
                a remote function makes never outlasts the call that the function runs for.
            metadata: what the function will find in `psf.current_caller().metadata`.

        Returns:
            The result, as a future. It raises what the function raises: a RemoteError, which also is the
            built-in exception that it derives from.

        Raises:
            NotRegistered: `fn` is no registered function.
            TypeError: an argument can't travel; the message names its type and the path to it.
        """
        name, incarnation = target(to)
        function = registry.name_of(fn)
        until = deadline(timeout)
        scope = leaving(name)  # may refuse, so before anything is packed
        journey = Journey(self.routes.info(name, incarnation))
        request = _pack(function, (args, kwargs), metadata, journey)
        if scope:
            request.scope = scope
        errand = Errand(self.routes, INVOKE, request, journey, until)
        self.routes.send(errand, name, incarnation)
        return errand.future

    def rpc_all(
        self,
        to: Iterable[Any],
        fn: Function,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        timeout: float | None = None,
        *,
        metadata: Mapping[str, str] | None = None,
        return_exceptions: bool = False,
    ) -> Future[list[Any]]:
        """Calls a function of many members at once.

        Args:
            to: names, members or RRefs.
            fn, args, kwargs, timeout, metadata: as for `rpc_async`.
            return_exceptions: puts exceptions among the results, instead of raising the first.

        Returns:
            The results, in the order of `to`, once all have ended. If some fail, the error of the first of
            them in that order is raised; its notes tell of the others. Cancelling it cancels all.
        """
        if isinstance(to, str):
            raise ArgumentError(f"rpc_all to {to!r}: pass several members, or call one with rpc_async")
        members = list(to)
        names = [target(member)[0] for member in members]
        calls = [self.rpc_async(member, fn, args, kwargs, timeout, metadata) for member in members]
        return gather(calls, names, return_exceptions=return_exceptions)

    def rpc_stream(
        self,
        to: Any,
        fn: Function,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        timeout: float | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> RemoteStream:
        """Calls a generator of a member, which begins at once and runs ahead of its consumer a little.

            async for part in cluster.rpc_stream("worker-0", generator): ...

        Leaving the loop early closes the generator. An error in it is raised after the items before it.

        Args:
            to, fn, args, kwargs, metadata: as for `rpc_async`.
            timeout: seconds that each item may take; None: 60; 0: no limit.
        """
        name, incarnation = target(to)
        function = registry.name_of(fn)
        deadline(timeout)  # raises if it can't be one
        scope = leaving(name)
        journey = Journey(self.routes.info(name, incarnation))
        call = _pack(function, (args, kwargs), metadata, journey)
        call.scope = scope
        request = OPEN, opening(call)
        return RemoteStream(self.routes, (name, incarnation), request, journey, partial(deadline, timeout))

    def describe(self, to: Any, timeout: float | None = None) -> Future[DescribeReply]:
        """What a member offers to be called, with figures of what was called."""
        errand = Errand(self.routes, DESCRIBE, DescribeRequest(), Journey(), deadline(timeout))
        self.routes.send(errand, *target(to))
        return errand.future

    def outstanding(self) -> dict[str, int]:
        """How many calls of this process somebody waits for, by the name of the member."""
        counts: dict[str, int] = {}
        for errand in self.routes.open:
            if errand.future.done():  # given up, and not answered
                continue
            counts[errand.name] = counts.get(errand.name, 0) + 1
        return counts

    async def close(self) -> None:
        """Ends calls of this process to itself; the others end when its agent is closed."""
        await self.routes.close()


def target(to: Any) -> tuple[str, int | None]:
    """(name, incarnation or None) of what calls are addressed to.

    Raises:
        ArgumentError: it is no member.
    """
    if isinstance(to, str):
        return to, None
    owner = getattr(to, "owner_name", None)
    name = owner() if callable(owner) else owner or getattr(to, "name", None)
    if not isinstance(name, str):
        raise ArgumentError(f"{type(to).__name__} is no member: pass a name, a member or an RRef")
    incarnation = getattr(to, "owner_incarnation" if owner is not None else "incarnation", None)
    return name, incarnation if isinstance(incarnation, int) else None


def deadline(timeout: float | None) -> Deadline:
    """The deadline of a call that is made here and now."""
    if timeout is not None and not _is_duration(timeout):
        raise ArgumentError(f"timeout={timeout!r}: seconds, 0 for no limit, or None for {DEFAULT_SECONDS:g}")
    inherited = running_deadline()
    if timeout == 0:
        return inherited
    own = Deadline.after(DEFAULT_SECONDS if timeout is None else timeout)
    return own if inherited is Deadline.NEVER or own < inherited else inherited


def _is_duration(timeout: Any) -> bool:
    try:
        return bool(0 <= timeout < math.inf)
    except TypeError:
        return False


def gather(
    calls: Sequence[asyncio.Future[Any]], names: Sequence[str], *, return_exceptions: bool
) -> Future[list[Any]]:
    """One future for many calls."""

    def cancel() -> None:
        for call in calls:
            call.cancel()

    together: Future[list[Any]] = Future(cancel)
    left = len(calls)

    def one_less(_: object) -> None:
        nonlocal left
        left -= 1
        if left <= 0 and not together.done():
            _settle(together, calls, names, return_exceptions)

    for call in calls:
        call.add_done_callback(one_less)
    if not calls:
        together.set_result([])
    return together


def _settle(
    together: Future[list[Any]],
    calls: Sequence[asyncio.Future[Any]],
    names: Sequence[str],
    return_exceptions: bool,
) -> None:
    errors = [asyncio.CancelledError() if call.cancelled() else call.exception() for call in calls]
    if return_exceptions or not any(errors):
        together.set_result([call.result() if error is None else error for call, error in zip(calls, errors)])
        return
    failed = [(name, error) for name, error in zip(names, errors) if error is not None]
    first = failed[0][1]
    for name, error in failed[1:]:
        first.add_note(f"{name} failed too: {type(error).__name__}: {error}")
    if isinstance(first, asyncio.CancelledError):
        together.cancel()
    else:
        together.set_exception(first)
