"""Typed methods, and the table that a received method name is looked up in.

A servicer is a plain object with `name` and `methods()`. It is mounted twice, on the call stream and as unary
gRPC methods, and never sees the difference.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from google.protobuf.message import Message

from psframework.errors import ArgumentError, NotRegistered
from psframework.rpc.call import Call

Handler = Callable[[Any, Call], Awaitable[Message] | Message]
"""`handler(request, call)`: an async function, or a plain one if it never waits (that is faster)."""


@dataclass(frozen=True, slots=True)
class Method:
    """One method of a service.

    Args:
        name: its name in the .proto file.
        request_type: generated class of the request; a bulk payload, if any, is its last field, `bytes data`.
        response_type: generated class of the response, likewise.
        handler: what runs; see `Handler`.
        roles: roles that may call it; empty means every authenticated one.
    """

    name: str
    request_type: type[Message]
    response_type: type[Message]
    handler: Handler
    roles: frozenset[str] = frozenset()

    @property
    def runs_inline(self) -> bool:
        """Whether the handler is a plain function, which runs without a task of its own."""
        return not inspect.iscoroutinefunction(self.handler)


class Service(Protocol):
    """What a servicer offers."""

    @property
    def name(self) -> str:
        """Full name in the .proto file: "psframework.proto.v1.ParameterServerService"."""
        ...

    def methods(self) -> Sequence[Method]:
        """Its methods; read once, when the service is mounted."""
        ...


OF_FUNCTIONS: Final = frozenset(f"/psframework.proto.v1.{name}" for name in ("RemoteService", "RRefService"))
"""Services of every member but those that have a work of their own, such as parameter servers."""


class MethodTable:
    """All methods of one process, by path "/service/method".

    Args:
        services: the services to mount; a path that appears twice is an ArgumentError.
    """

    def __init__(self, services: Iterable[Service] = ()) -> None:
        self._methods: dict[str, tuple[Method, bool]] = {}
        for service in services:
            self.add(service)

    def add(self, service: Service) -> None:
        """Mounts one more service."""
        for method in service.methods():
            path = f"/{service.name}/{method.name}"
            if path in self._methods:
                raise ArgumentError(f"{path} is mounted twice in one process")
            self._methods[path] = (method, method.runs_inline)

    def find(self, path: str) -> tuple[Method, bool]:
        """The method at `path`, and whether it runs inline; NotRegistered lists near names."""
        found = self._methods.get(path)
        if found is not None:
            return found
        if path.rpartition("/")[0] in OF_FUNCTIONS:
            raise NotRegistered(
                "this process runs no functions and keeps no values for others: call a worker"
            )
        near = difflib.get_close_matches(path[:200], self._methods, n=3)
        hint = (
            f"; near: {', '.join(near)}"
            if near
            else f"; here: {', '.join(sorted(self._methods)) or 'nothing'}"
        )
        raise NotRegistered(f"no method {path[:200]!r}{hint}")

    def items(self) -> Iterable[tuple[str, Method]]:
        """All (path, method) pairs."""
        return [(path, method) for path, (method, _) in self._methods.items()]
