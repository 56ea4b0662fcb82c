"""Members with distributed autograd, in this process, over real sockets."""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from psframework.dist_autograd.client import DistAutograd
from psframework.dist_autograd.handle import DistContext
from psframework.rpc.deadline import Deadline
from psframework.testing.workers import Phonebook, Worker, worker


@dataclass
class Member:
    """One with contexts."""

    worker: Worker
    dist: DistAutograd

    def rpc(self, to: str, fn: Any, *args: Any) -> Any:
        return self.worker.remote.rpc_async(to, fn, args, timeout=10.0)

    def context(self) -> DistContext:
        return DistContext(self.dist)

    async def ask(self, to: str, method: str, request: Any, response: Any) -> Any:
        """A bare call of a method of its service there."""
        peer = self.worker.agent.peer_for(to)
        assert peer is not None
        path = f"/psframework.proto.v1.DistAutogradService/{method}"
        reply, _ = await peer.call(path, request, response, deadline=Deadline.after(5))
        return reply


@dataclass
class Crew:
    """Members that know each other."""

    stack: AsyncExitStack
    book: Phonebook = field(default_factory=Phonebook)
    members: dict[str, Member] = field(default_factory=dict)

    async def hire(self, name: str) -> Member:
        made = await self.stack.enter_async_context(worker(name, self.book))
        dist = await self.stack.enter_async_context(DistAutograd(made.agent, made.remote, self.book))
        member = self.members[name] = Member(made, dist)
        return member

    def bury(self, name: str, reason: str = "lease") -> None:
        """What the membership tells everybody about a member."""
        incarnation = self.book.known[name].incarnation
        for other, member in self.members.items():
            if other != name:
                member.dist.lost(SimpleNamespace(incarnation=incarnation), reason)
