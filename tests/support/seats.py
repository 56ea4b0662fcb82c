"""Members with seats in generations of groups, in this process, over real sockets, without a coordinator."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

from psframework.collective.recorder import Recorder
from psframework.collective.seat import Seat
from psframework.collective.servicer import CollectiveService
from psframework.errors import ContextClosed, NotRegistered
from psframework.proto.v1 import collective_pb2 as pb
from psframework.rpc.deadline import Deadline
from psframework.rpc.limits import AgentOptions
from psframework.rpc.session.agent import Agent
from psframework.testing.workers import Phonebook, Worker, worker


def soon(seconds: float = 10.0) -> Deadline:
    return Deadline.after(seconds)


class Book(Phonebook):
    """A directory of members that all can dial."""

    def listens(self) -> str:
        return "*"


class Group:
    """What a seat tells a ProcessGroup."""

    def __init__(self) -> None:
        self.recorder = Recorder(lambda: 0.0)
        self.ends: list[tuple[BaseException, int | None]] = []

    def abort(self, error: BaseException, after: int | None = None) -> None:
        self.ends.append((error, after))


@dataclass
class Member:
    """One that finds its seats in a list."""

    worker: Worker
    seats: list[Seat] = field(default_factory=list)
    passed_on: list[BaseException] = field(default_factory=list)
    ended: list[pb.GroupId] = field(default_factory=list)

    def leave(self, seat: Seat) -> None:
        """Gives a seat back."""
        self.seats.remove(seat)
        self.ended.append(seat.id)

    @property
    def name(self) -> str:
        return self.worker.name

    @property
    def agent(self) -> Agent:
        return self.worker.agent

    async def find(self, id: pb.GroupId, deadline: Deadline) -> Seat:
        for seat in self.seats:
            if seat.id == id:
                return seat
        if id in self.ended:
            raise ContextClosed(f"generation {id.generation} of group {id.name!r} has ended here")
        raise NotRegistered(f"{self.name} is not in generation {id.generation} of group {id.name!r}")

    def pass_on(self, seat: Seat, error: BaseException) -> None:
        self.passed_on.append(error)

    async def ask(self, to: Member, method: str, request: Any, response: Any, **more: Any) -> Any:
        """A bare call of a method of the service there."""
        address = to.worker.address
        peer = await self.agent.connect(
            [address], name=to.name, role="worker", incarnation=to.agent.identity.incarnation, deadline=soon()
        )
        path = f"/psframework.proto.v1.CollectiveService/{method}"
        reply, _ = await peer.call(path, request, response, deadline=soon(), **more)
        return reply


@dataclass
class World:
    """Members that know each other."""

    stack: AsyncExitStack
    book: Book = field(default_factory=Book)
    members: dict[str, Member] = field(default_factory=dict)
    told: list[tuple[int, BaseException]] = field(default_factory=list)

    async def hire(self, name: str, *, listens: bool = True, options: AgentOptions | None = None) -> Member:
        made = await self.stack.enter_async_context(worker(name, self.book, listens=listens, options=options))
        member = self.members[name] = Member(made)
        made.agent.mount(CollectiveService(member))
        return member

    def tell(self, seat: Seat, error: BaseException) -> None:
        self.told.append((seat.rank, error))

    async def group(self, names: Sequence[str] = "abc", generation: int = 1) -> list[Seat]:
        """A seat for each, in one generation of group "g"; members are hired as needed."""
        for name in names:
            if name not in self.members:
                await self.hire(name)
        sealed = [
            pb.Candidate(
                name=name, incarnation=self.members[name].agent.identity.incarnation, ticket=1, listens="*"
            )
            for name in names
        ]
        id = pb.GroupId(job="j", name="g", generation=generation)
        seats = [
            Seat(id, rank, sealed, self.members[name].agent, self.book, self.tell)
            for rank, name in enumerate(names)
        ]
        for name, seat in zip(names, seats, strict=True):
            self.members[name].seats.append(seat)
            self.stack.callback(seat.forget)
        return seats


async def until(condition: Any, seconds: float = 5.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.001)
