"""The ranks of a pipe as its driver sees them: placed, called all at once, replaced."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from psframework.errors import ContextClosed, DeadlineExceeded, NotRegistered, PeerLost, PsfError
from psframework.pipeline.placement import Cluster, Life, Vacancy, life, replacement
from psframework.pipeline.plan import PipePlan, StagePlan, Standing
from psframework.pipeline.servicer import PLACE, Source
from psframework.rpc.deadline import Deadline
from psframework.rref.handle import RRef

ASK_SECONDS = 1.0
"""A rank whose loop turns says within this where it is."""


class Seat(NamedTuple):
    """A place in a pipe."""

    rank: int
    replica: int


class Ranks:
    """The ranks of one pipe.

    Args:
        cluster: calls them.
        plan: of the pipe.
        stages: of all ranks, in order.

    Attributes:
        plan: as it is now.
        lost: seats whose services are gone.
    """

    def __init__(self, cluster: Cluster, plan: PipePlan, stages: Sequence[StagePlan]) -> None:
        self._cluster, self._stages = cluster, stages
        self.plan = plan
        self.lost: set[Seat] = set()
        self._hosts: dict[Seat, RRef] = {}
        self._lives: dict[Seat, Life] = {}
        self._closed = False

    @property
    def seats(self) -> list[Seat]:
        """All, in order."""
        return [
            Seat(rank, replica)
            for rank, names in enumerate(self.plan.services)
            for replica in range(len(names))
        ]

    def name_of(self, seat: Seat) -> str:
        """The service there."""
        return self.plan.services[seat.rank][seat.replica]

    def words(self, seat: Seat) -> str:
        """A seat as errors name it: "stage 1 on stage-1"."""
        stages = self.plan.stages_of(seat.rank)
        several = "s" if len(stages) > 1 else ""
        return f"stage{several} {', '.join(map(str, stages))} on {self.name_of(seat)}"

    def named(self, error: PeerLost) -> PeerLost:
        """An error that says which stage was on the service that is lost; as it was if none was."""
        seats = [seat for seat in self.seats if self.name_of(seat) == error.peer]
        words = [self.words(seat) for seat in seats if seat in self.lost]
        if not words or words[0] in str(error):
            return error
        text = f"{words[0]} is lost, too late for another service to take the place: step again ({error})"
        return PeerLost(text, peer=error.peer, reason=error.reason)

    async def place_all(self, deadline: Deadline) -> None:
        """Makes all stages. If one can't be made, none is kept."""
        try:
            await _all([self._place(seat, self.plan, None, deadline) for seat in self.seats])
        except BaseException:
            await self.close()
            raise

    async def call(
        self, method: str, *args: Any, deadline: Deadline, seats: Sequence[Seat] | None = None
    ) -> list[Any]:
        """Calls a method of all hosts, or of some; the first error cancels the others.

        Raises:
            ContextClosed: the pipeline is closed, or was meanwhile.
        """
        try:
            results = await _all(self.start(method, *args, deadline=deadline, seats=seats))
        except Exception:
            self._check()
            raise
        self._check()
        return results

    def start(
        self, method: str, *args: Any, deadline: Deadline, seats: Sequence[Seat] | None = None
    ) -> list[asyncio.Future[Any]]:
        """As `call`, but answers the futures, of which some may have failed already.

        Raises:
            ContextClosed: the pipeline was closed.
        """
        self._check()
        seconds = _seconds(deadline)
        chosen = self.seats if seats is None else seats
        return [_called(self._hosts[seat], seconds, method, args) for seat in chosen]

    async def look(self, deadline: Deadline) -> dict[Seat, Standing | None]:
        """Where each rank is: None if it did not say. Those that are gone are `lost` from then on."""
        seats = [seat for seat in self.seats if seat not in self.lost]
        calls = self.start("standing", deadline=deadline, seats=seats)
        answers = await asyncio.gather(*calls, return_exceptions=True)
        found: dict[Seat, Standing | None] = {}
        for seat, answer in zip(seats, answers):
            if isinstance(answer, PeerLost):
                self.lost.add(seat)
            elif isinstance(answer, BaseException) and not isinstance(answer, DeadlineExceeded):
                raise answer
            else:
                found[seat] = None if isinstance(answer, BaseException) else answer
        return found

    async def replace_lost(self, commit: int, run: int, deadline: Deadline) -> None:
        """Fills the seats of those that are gone, with the state that others keep of them.

        Args:
            commit: that is restored.
            run: the last one that failed.
            deadline: to wait until for a service.

        Raises:
            PeerLost: no service came in time, naming the stage; or nobody has the state (any more); or one
                more is gone.
        """
        lost = {self._lives[seat] for seat in self.lost}
        for seat in sorted(self.lost):
            await self._replace(seat, lost, Source("", commit, run), deadline)

    async def close(self) -> None:
        """Frees all stages; none can be called or placed any more."""
        self._closed = True
        hosts, self._hosts = self._hosts, {}
        calls = [_called(host, ASK_SECONDS, "close", ()) for host in hosts.values()]
        await asyncio.gather(*calls, return_exceptions=True)
        for host in hosts.values():
            host.close()

    async def _replace(self, seat: Seat, lost: set[Life], source: Source, deadline: Deadline) -> None:
        gone, name = self.words(seat), self.name_of(seat)
        keeper = self._keeper(seat)
        if keeper is None:
            raise _nobody_has(gone)
        tried: set[Life] = set()
        busy = {self.name_of(other) for other in self.seats if other not in self.lost}
        while True:
            found = await replacement(self._cluster, Vacancy(name, busy, lost, tried), deadline)
            if found is None:
                raise PeerLost(
                    f"{gone} is lost, and no other stage service came in time: start one with `psf serve "
                    "pipeline-stage`, and step again; the other stages stand at the last commit",
                    peer=name,
                    reason="lost",
                )
            plan = _with(self.plan, seat, found.name)
            try:
                await self._place(seat, plan, replace(source, service=keeper), deadline)
            except NotRegistered as error:  # that keeper is a newcomer itself
                raise _nobody_has(gone) from error
            except PeerLost as error:
                if error.peer != found.name:
                    raise
                tried.add(life(found))  # it went too: another one
            else:
                self.plan = plan  # not before: who was found is free again if this is given up
                self.lost.discard(seat)
                return

    async def _place(self, seat: Seat, plan: PipePlan, source: Source | None, deadline: Deadline) -> None:
        self._check()
        name = plan.services[seat.rank][seat.replica]
        stages = [self._stages[index] for index in plan.stages_of(seat.rank)]
        member = next((each for each in self._cluster.members() if each.name == name), None)
        host = self._cluster.remote(
            name, PLACE, (plan, tuple(seat), stages, source), timeout=_seconds(deadline)
        )
        try:
            await host.confirmed_by_owner()
            self._check()
        except BaseException:
            host.close()
            raise
        if seat in self._hosts:
            self._hosts[seat].close()
        self._hosts[seat] = host
        self._lives[seat] = (name, 0) if member is None else life(member)

    def _check(self) -> None:
        if self._closed:
            raise ContextClosed("this pipeline is closed")

    def _keeper(self, seat: Seat) -> str | None:
        """Who has the state of a seat."""
        twins = [other for other in self.seats if other.rank == seat.rank and other not in self.lost]
        if twins:
            return self.name_of(twins[0])
        buddy = self.plan.buddy_of(seat.rank)
        alive = {self.name_of(other) for other in self.seats if other not in self.lost}
        return buddy if buddy in alive else None


def _with(plan: PipePlan, seat: Seat, name: str) -> PipePlan:
    services = [list(names) for names in plan.services]
    services[seat.rank][seat.replica] = name
    return replace(plan, generation=plan.generation + 1, services=tuple(map(tuple, services)))


def _nobody_has(gone: str) -> PeerLost:
    text = f"{gone} is lost, and nobody has its state (any more): open the pipeline anew"
    return PeerLost(text, reason="lost")


def _seconds(deadline: Deadline) -> float:
    """As calls take them: 0 for no limit."""
    left = deadline.seconds()
    return 0 if left is None else max(left, 1e-3)


def _called(host: RRef, seconds: float, method: str, args: Sequence[Any]) -> asyncio.Future[Any]:
    try:
        found: asyncio.Future[Any] = getattr(host.rpc_async(timeout=seconds), method)(*args)
    except PsfError as error:  # its owner is known to be gone
        found = asyncio.get_running_loop().create_future()
        found.set_exception(error)
    return found


async def _all(calls: Sequence[Any]) -> list[Any]:
    """The results of all; the first error cancels the others."""
    futures = [asyncio.ensure_future(call) for call in calls]
    try:
        return await asyncio.gather(*futures)
    finally:
        for future in futures:
            future.cancel()
