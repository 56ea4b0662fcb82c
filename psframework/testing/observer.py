"""Looks at a cluster, and at its keys, without being a member."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from psframework.membership.keys import DEFAULT_SECONDS, KeyValue
from psframework.membership.line import Line
from psframework.membership.messages import member_from_message
from psframework.membership.view import View
from psframework.proto.v1 import coordinator_pb2 as pb
from psframework.rpc.deadline import Deadline
from psframework.rpc.security.credentials import Security


class Observer:
    """An async context manager over a line to the coordinator.

    Attributes:
        kv: the cluster's key-value store.

    Args:
        addresses: of coordinators, tried in order.
        security: certificates and token; None for plaintext.
    """

    def __init__(self, addresses: Sequence[str], security: Security | None = None) -> None:
        self._line = Line(addresses, security or Security.plaintext())
        self.kv = KeyValue(self._line)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._line.__aexit__()

    @property
    def term(self) -> int:
        """The highest term of a coordinator seen so far; 0 before the first call."""
        return self._line.terms.highest

    async def view(self, deadline: Deadline | None = None) -> View:
        """Returns the view as it is now; DeadlineExceeded if none answers (by default within 30 s)."""
        response = await self._line.call(
            "ListMembers",
            pb.ListMembersRequest(),
            pb.ListMembersResponse,
            deadline or Deadline.after(DEFAULT_SECONDS),
        )
        return View(response.number, map(member_from_message, response.members))
