"""Calls of a service's handlers without a connection: what a `Peer` does, in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from psframework.rpc.call import Call, Incoming, PeerInfo
from psframework.rpc.deadline import Deadline
from psframework.rpc.service import Service


class Direct:
    """One member's session with a service.

    Args:
        service: whose handlers are called.
        incarnation: of the member, which is called member-INCARNATION; 0 for a client with a stock stub.
    """

    def __init__(self, service: Service, incarnation: int) -> None:
        self._handlers = {f"/{service.name}/{method.name}": method.handler for method in service.methods()}
        self._peer = PeerInfo(f"member-{incarnation}", "trainer", "default", incarnation)

    async def call(self, method, request, response_type, *, parts: Sequence = (), deadline: Deadline):
        views = [memoryview(part).cast("B") for part in parts]
        copies = [memoryview(bytes(view)) for view in views]
        call = Call(self._peer, deadline, Incoming([len(view) for view in copies], copies))
        sent = type(request).FromString(request.SerializeToString())
        async with asyncio.timeout(deadline.seconds()):
            reply = self._handlers[method](sent, call)
            if asyncio.iscoroutine(reply):
                reply = await reply
        return reply, [memoryview(bytes(part)) for part in call.reply]
