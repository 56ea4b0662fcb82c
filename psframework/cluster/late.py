"""A server that listens before its process has joined: others must be told its port, so that comes first."""

from __future__ import annotations

from collections.abc import Sequence

import grpc


class LateHandlers(grpc.GenericRpcHandler):
    """Handlers that are known only after the server has begun to listen.

    Attributes:
        handlers: what to ask; None while the process is starting, when every call is told to come again.
    """

    def __init__(self) -> None:
        self.handlers: Sequence[grpc.GenericRpcHandler] | None = None

    def service(
        self, handler_call_details: grpc.HandlerCallDetails
    ) -> grpc.RpcMethodHandler[object, object] | None:
        """The method handler for one incoming call; None if there is no such method."""
        if self.handlers is None:
            return grpc.stream_stream_rpc_method_handler(_not_yet)
        for handler in self.handlers:
            found = handler.service(handler_call_details)
            if found is not None:
                return found
        return None


async def _not_yet(_: object, context: grpc.aio.ServicerContext[object, object]) -> None:
    await context.abort(grpc.StatusCode.UNAVAILABLE, "this service is still joining the cluster: try again")
