"""What a rank sends to other ranks: without waiting, so that it travels while the next action computes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from typing import Any, Final, Protocol, TypeAlias

from psframework.pipeline.mailbox import Mailbox
from psframework.pipeline.plan import Key
from psframework.pipeline.trees import Tree

DELIVER: Final = "psframework.pipeline.deliver"
KEEP: Final = "psframework.pipeline.keep"
Letter: TypeAlias = tuple[Key, Tree]
"""Something, and what it is for."""


class Caller(Protocol):
    """As much of a cluster as is needed to call its members."""

    @property
    def name(self) -> str:
        """This member's."""
        ...

    def rpc_async(
        self, to: Any, fn: Any, args: Any = (), kwargs: Any = None, timeout: float | None = None
    ) -> asyncio.Future[Any]:
        """Calls a function of a member."""
        ...


class Post:
    """Sends trees to mailboxes of one pipe.

    Args:
        pipe: its id.
        cluster: calls.
        mailbox: this member's own; None in a driver.
    """

    def __init__(self, pipe: str, cluster: Caller, mailbox: Mailbox | None = None) -> None:
        self._pipe = pipe
        self._cluster = cluster
        self._mailbox = mailbox

    def send(self, to: str, key: Key, tree: Tree) -> Awaitable[Any] | None:
        """Copies and sends; None if it was for this member.

        Args:
            to: name of a service.
            key: what it is for.
            tree: of arrays.
        """
        return self.send_all(to, [(key, tree)])

    def send_all(self, to: str, letters: Sequence[Letter]) -> Awaitable[Any] | None:
        """As `send`, in one message. It has no limit of time: whoever waits for the whole run has one."""
        if to == self._cluster.name and self._mailbox is not None:
            for key, tree in letters:
                self._mailbox.put(key, tree)
            return None
        return self._cluster.rpc_async(to, DELIVER, (self._pipe, list(letters)), timeout=0)
