"""Channels that show a bearer token on every call.

gRPC's own call credentials refuse plaintext channels, and its asyncio interceptors put a queue between a
stream and its writer; adding the metadata where a call starts costs neither.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any

import grpc

Metadata = tuple[tuple[str, str], ...]


class TokenChannel(grpc.aio.Channel):
    """A grpc.aio channel whose calls all carry some metadata.

    Args:
        inner: the channel that does the work; closing this one closes it.
        metadata: pairs to add to each call's own.
    """

    def __init__(self, inner: grpc.aio.Channel, metadata: Metadata):
        self._inner = inner
        self._metadata = metadata

    async def __aenter__(self) -> TokenChannel:
        await self._inner.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return await self._inner.__aexit__(kind, error, trace)

    async def close(self, grace: float | None = None) -> None:
        await self._inner.close(grace)

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        return self._inner.get_state(try_to_connect)

    async def wait_for_state_change(self, last_observed_state: grpc.ChannelConnectivity) -> None:
        await self._inner.wait_for_state_change(last_observed_state)

    async def channel_ready(self) -> None:
        await self._inner.channel_ready()

    # Generated stubs call these four with arguments that differ between gRPC versions: pass them as they are.
    def unary_unary(self, *args: Any, **kwargs: Any) -> Any:
        return self._wrapped(self._inner.unary_unary(*args, **kwargs))

    def unary_stream(self, *args: Any, **kwargs: Any) -> Any:
        return self._wrapped(self._inner.unary_stream(*args, **kwargs))

    def stream_unary(self, *args: Any, **kwargs: Any) -> Any:
        return self._wrapped(self._inner.stream_unary(*args, **kwargs))

    def stream_stream(self, *args: Any, **kwargs: Any) -> Any:
        return self._wrapped(self._inner.stream_stream(*args, **kwargs))

    def _wrapped(self, multicallable: Callable[..., Any]) -> Callable[..., Any]:
        token = self._metadata

        def call(*args: Any, metadata: Any = None, **kwargs: Any) -> Any:
            return multicallable(*args, metadata=(*(metadata or ()), *token), **kwargs)

        return call


def with_token(inner: grpc.Channel, metadata: Metadata) -> grpc.Channel:
    """The same for the calls with one request of a synchronous channel."""
    return grpc.intercept_channel(inner, _AddMetadata(metadata))


class _Details(grpc.ClientCallDetails):
    """The call's own details with more metadata; gRPC passes attributes on, whatever class holds them."""

    def __init__(self, details: grpc.ClientCallDetails, metadata: Metadata):
        self.method = details.method
        self.timeout = details.timeout
        self.metadata = (*(details.metadata or ()), *metadata)
        self.credentials = details.credentials
        self.wait_for_ready = details.wait_for_ready
        self.compression = getattr(details, "compression", None)


class _AddMetadata(grpc.UnaryUnaryClientInterceptor, grpc.UnaryStreamClientInterceptor):
    def __init__(self, metadata: Metadata):
        self._metadata = metadata

    def intercept_unary_unary(
        self, continuation: Any, client_call_details: grpc.ClientCallDetails, request: Any
    ) -> Any:
        return continuation(_Details(client_call_details, self._metadata), request)

    def intercept_unary_stream(
        self, continuation: Any, client_call_details: grpc.ClientCallDetails, request: Any
    ) -> Any:
        return continuation(_Details(client_call_details, self._metadata), request)
