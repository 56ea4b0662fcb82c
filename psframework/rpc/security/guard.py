"""The interceptor of every server: token and role before a call, status and log line after its failure."""

from __future__ import annotations

import asyncio
import difflib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import aclosing
from typing import Any, TypeVar, cast

import grpc

from psframework.errors import NotRegistered, PeerLost, PermissionDenied, WireError
from psframework.rpc.failures import log_abort, log_failure
from psframework.rpc.security import audit
from psframework.rpc.security.credentials import Security
from psframework.rpc.security.identity import identity
from psframework.rpc.status import abort

F = TypeVar("F", bound=Callable[..., Any])
Context = grpc.aio.ServicerContext[Any, Any]
Continuation = Callable[[grpc.HandlerCallDetails], Awaitable[Any]]
_ROLES = "__psf_roles__"
HEALTH = "grpc.health.v1.Health"  # answers to the end: NOT_SERVING
CALL_SERVICE = "psframework.proto.v1.CallService"
"""Its sessions need their streams while calls end; which sessions are new, only `Agent.drain` knows."""


def require_roles(*roles: str) -> Callable[[F], F]:
    """Marks a method of a generated servicer: only certificates of these roles may call it.

        @require_roles("coordinator", "admin")
        async def Drain(self, request, context): ...

    Without TLS nobody shows a role, and the token alone decides.
    """

    def mark(function: F) -> F:
        setattr(function, _ROLES, frozenset(roles))
        return function

    return mark


class Guard(grpc.aio.ServerInterceptor):
    """Admits calls, and turns what their handlers raise into statuses.

    Args:
        security: whose token and certificates count.
        open_services: full names of services that need no token.
        known: full names of the services that are mounted, for the error of an unknown one.
    """

    def __init__(self, security: Security, open_services: Collection[str] = (), known: Collection[str] = ()):
        self._security = security
        self._open = frozenset(open_services)
        self._known = known
        self.draining = False  # refuse what is new
        self.running = 0  # calls that will end by themselves (one reply each), for draining
        self.streams = 0

    async def intercept_service(
        self, continuation: Continuation, handler_call_details: grpc.HandlerCallDetails
    ) -> Any:
        """Wraps the handler that is found, in its own kind."""
        handler = await continuation(handler_call_details)
        path = handler_call_details.method
        if handler is None:
            return grpc.stream_stream_rpc_method_handler(self._unknown(path))
        kinds = ("unary_unary", "unary_stream", "stream_unary", "stream_stream")
        kind = next(name for name in kinds if getattr(handler, name) is not None)
        behavior = getattr(handler, kind)
        # gRPC would answer bytes that are no request with UNKNOWN, so they are read here.
        parse = handler.request_deserializer
        if kind.startswith("unary_") and parse is not None:
            read, parse = _reader(path, parse), None
        else:
            read = _as_it_is
        if asyncio.iscoroutinefunction(behavior):
            wrapped = self._awaited(path, behavior, read, streams=kind.endswith("_stream"))
        else:
            wrapped = self._iterated(path, behavior, read)
        make = getattr(grpc, f"{kind}_rpc_method_handler")
        return make(wrapped, parse, handler.response_serializer)

    def _awaited(
        self, path: str, behavior: Callable[..., Any], read: Callable[[Any], Any], *, streams: bool
    ) -> Callable[..., Any]:
        roles: frozenset[str] = getattr(behavior, _ROLES, frozenset())

        async def call(request: Any, context: Context) -> Any:
            started = time.monotonic()
            self._count(streams, 1)
            try:
                self._admit(path, roles, context)
                return await behavior(read(request), context)
            except BaseException as error:
                await _end(path, context, error, started)
                raise
            finally:
                self._count(streams, -1)

        return call

    def _iterated(
        self, path: str, behavior: Callable[..., Any], read: Callable[[Any], Any]
    ) -> Callable[..., Any]:
        roles: frozenset[str] = getattr(behavior, _ROLES, frozenset())

        async def stream(request: Any, context: Context) -> AsyncIterator[Any]:
            started = time.monotonic()
            self._count(True, 1)
            try:
                self._admit(path, roles, context)
                async with aclosing(behavior(read(request), context)) as replies:
                    async for reply in replies:
                        yield reply
            except BaseException as error:
                await _end(path, context, error, started)
                raise
            finally:
                self._count(True, -1)

        return stream

    def _admit(self, path: str, roles: frozenset[str], context: Context) -> None:
        service = path.split("/")[1]
        if self.draining and service not in (HEALTH, CALL_SERVICE):
            raise PeerLost(
                "this service is ending: try another, or again", reason="closed", may_have_run=False
            )
        holder = identity(cast(Any, context))
        if service not in self._open:
            try:
                self._security.check_token(cast(Any, context.invocation_metadata()) or ())
            except PermissionDenied as error:
                audit.refused(path, error, name=context.peer(), certificate=audit.certificate_of(holder))
                raise
        if holder is not None:
            audit.authorize(holder, roles, path)

    def _count(self, streams: bool, change: int) -> None:
        if streams:
            self.streams += change
        else:
            self.running += change

    def _unknown(self, path: str) -> Callable[..., Any]:
        async def refuse(requests: Any, context: Context) -> None:
            service = path.split("/")[1] if path.count("/") == 2 else path
            near = difflib.get_close_matches(service, self._known, n=3) or sorted(self._known)
            error = NotRegistered(f"nothing serves {path[:200]!r} here; services: {', '.join(near)}")
            log_failure(path[:200], context.peer(), error, 0.0)
            await abort(cast(Any, context), error)

        return refuse


def _as_it_is(request: Any) -> Any:
    return request


def _reader(path: str, parse: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    """`parse`, with a WireError for bytes that are no request."""

    def read(data: bytes) -> Any:
        try:
            return parse(data)
        except Exception as error:
            raise WireError(f"{path}: {len(data)} bytes that are no request: {error}") from None

    return read


async def _end(path: str, context: Context, error: BaseException, started: float) -> None:
    """Logs a failure and ends its call with a status; returns for what is not the handler's failure."""
    seconds = time.monotonic() - started
    if isinstance(error, grpc.aio.AbortError):  # the handler chose the status itself
        code = cast(Any, context).code() or grpc.StatusCode.UNKNOWN
        log_abort(path, context.peer(), _as_code(code), cast(Any, context).details() or "", seconds)
    elif isinstance(error, Exception):
        log_failure(path, context.peer(), error, seconds)
        await abort(cast(Any, context), error)


def _as_code(code: object) -> grpc.StatusCode:
    """gRPC gives back the bare number of a status that was set."""
    if isinstance(code, grpc.StatusCode):
        return code
    return next((each for each in grpc.StatusCode if each.value[0] == code), grpc.StatusCode.UNKNOWN)
