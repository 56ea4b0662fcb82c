"""Members that call each other's functions, without a coordinator: in one process, over real sockets."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from psframework.errors import PeerLost
from psframework.rpc.call import PeerInfo
from psframework.rpc.functions.execute import ExecuteOptions, Executor
from psframework.rpc.functions.remote_client import Remote, target
from psframework.rpc.functions.remote_service import RemoteService
from psframework.rpc.functions.routes import Address
from psframework.rpc.limits import AgentOptions
from psframework.rpc.security.credentials import Security
from psframework.rpc.serve import ServeOptions, serve
from psframework.rpc.session.agent import Agent

QUIET = ServeOptions(announce=False, drain_seconds=0.2)
PLAINTEXT = Security.plaintext()
USUAL = ExecuteOptions()
_incarnations = itertools.count(1)


@dataclass
class Phonebook:
    """A directory that tests write themselves.

    Attributes:
        known: where each member is.
        ended: lives that are over.
    """

    known: dict[str, Address] = field(default_factory=dict)
    ended: set[int] = field(default_factory=set)

    def has_ended(self, incarnation: int, /) -> bool:
        """As `Directory.has_ended`."""
        return incarnation in self.ended

    def address_of(self, to: Any, /) -> Address:
        """As `Directory.address_of`."""
        name = target(to)[0]
        found = self.known.get(name)
        if found is None:
            raise PeerLost(f"there is no member {name}", peer=name, reason="lease", may_have_run=False)
        return found


@dataclass
class Worker:
    """A member.

    Attributes:
        agent: its sessions.
        remote: its calls.
        service: what it serves.
        address: where it listens; "" if it does not.
    """

    agent: Agent
    remote: Remote
    service: RemoteService
    address: str = ""

    @property
    def name(self) -> str:
        """Its name."""
        return self.agent.identity.name


@asynccontextmanager
async def worker(
    name: str,
    book: Phonebook,
    *,
    role: str = "worker",
    listens: bool = True,
    limits: ExecuteOptions = USUAL,
    options: AgentOptions | None = None,
    enter: Callable[[], None] | None = None,
) -> AsyncIterator[Worker]:
    """Starts a member, and writes it into the book.

    Args:
        name: of the member.
        book: shared with the others.
        role: of the member.
        listens: whether it can be dialled.
        limits: of what it takes on.
        options: of its agent.
        enter: called in the context of each call that it serves.
    """
    info = PeerInfo(name, role, "", next(_incarnations))
    async with AsyncExitStack() as stack:
        executor = await stack.enter_async_context(Executor(limits, enter=enter))
        service = await stack.enter_async_context(RemoteService(executor))
        agent = Agent(info, security=PLAINTEXT, services=[service], options=options)
        await stack.enter_async_context(agent)
        remote = Remote(agent, book)
        stack.push_async_callback(remote.close)
        made = Worker(agent, remote, service)
        if listens:
            server = await stack.enter_async_context(
                serve(agent.handlers(), bind="127.0.0.1:0", security=PLAINTEXT, options=QUIET)
            )
            agent.listen(server.host)
            made.address = server.address
        book.known[name] = Address([made.address] if listens else [], role, info.incarnation)
        yield made
