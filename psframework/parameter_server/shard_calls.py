"""The keeper's calls to shards: unary gRPC, every address in turn, again and again until the deadline."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Final, TypeVar

import grpc
from google.protobuf.message import Message

from psframework.errors import DeadlineExceeded, PeerLost
from psframework.parameter_server.messages import shard_method
from psframework.parameter_server.registry import ShardRef
from psframework.rpc.deadline import Deadline
from psframework.rpc.security.credentials import Security
from psframework.rpc.status import from_rpc_error

M = TypeVar("M", bound=Message)
SHARD_ROLE: Final = "parameter-server"
ATTEMPT_SECONDS: Final = 2.0
FIRST_PAUSE, LONGEST_PAUSE = 0.02, 0.5


class ShardCalls:
    """Channels to shards, kept open.

    Args:
        security: certificates and token.
    """

    def __init__(self, security: Security) -> None:
        self._security = security
        self._channels: dict[tuple[str, str], grpc.aio.Channel] = {}

    async def call(
        self,
        shard: ShardRef,
        method: str,
        request: Message,
        response_type: type[M],
        deadline: Deadline,
        check: Callable[[], None] = lambda: None,
    ) -> M:
        """Calls a method that may be repeated, until it is answered.

        Args:
            shard: whom.
            method: its name.
            request: its request.
            response_type: class of the response.
            deadline: for all attempts together.
            check: called before each attempt; what it raises ends the call.

        Raises:
            DeadlineExceeded: it did not answer; names it.
            PsfError: what the shard answered.
        """
        pause, tries, last = FIRST_PAUSE, 0, "it has no address"
        while not deadline.expired:
            check()
            if shard.addresses:
                address = shard.addresses[tries % len(shard.addresses)]
                tries += 1
                timeout = min(deadline.remaining(), ATTEMPT_SECONDS)
                try:
                    return await self._attempt(shard, address, method, request, response_type, timeout)
                except (PeerLost, DeadlineExceeded) as error:
                    last = str(error)
            await asyncio.sleep(min(pause * random.uniform(0.5, 1.0), deadline.remaining()))
            pause = min(pause * 2, LONGEST_PAUSE)
        check()
        raise DeadlineExceeded(f"shard {shard.name} did not answer {method}: {last}")

    async def close(self) -> None:
        """Closes the channels."""
        channels, self._channels = self._channels, {}
        for channel in channels.values():
            await channel.close()

    def forget(self, name: str) -> None:
        """A shard is gone for good."""
        for key in [key for key in self._channels if key[0] == name]:
            # Closing waits for calls that run; they end by their own timeout.
            self._channels.pop(key)

    async def _attempt(
        self,
        shard: ShardRef,
        address: str,
        method: str,
        request: Message,
        response_type: type[M],
        timeout: float,
    ) -> M:
        channel = self._channels.get((shard.name, address))
        if channel is None:
            channel = self._security.channel(address, role=SHARD_ROLE, name=shard.name)
            self._channels[shard.name, address] = channel
        call = channel.unary_unary(
            shard_method(method), type(request).SerializeToString, response_type.FromString
        )
        try:
            return await call(request, timeout=timeout)
        except grpc.aio.AioRpcError as error:
            raise from_rpc_error(error, peer=f"shard {shard.name}", hint=self._security.hint) from None
