"""Which services hold the ranks of a pipe, and which one takes the place of one that is gone."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeAlias

from psframework.errors import ArgumentError, RendezvousTimeout
from psframework.membership.view import Member, MemberState
from psframework.pipeline.post import Caller
from psframework.rpc.deadline import Deadline
from psframework.rref.handle import RRef

ROLE: Final = "pipeline-stage"
_LOOK_SECONDS = 0.05

Life: TypeAlias = tuple[str, int]
"""A name and an incarnation."""


class Cluster(Caller, Protocol):
    """As much of a cluster as a driver needs."""

    def members(self, role: str | None = None) -> tuple[Member, ...]:
        """The live members."""
        ...

    def job_of_names(self) -> str:
        """The job that names which the running code gives belong to."""
        ...

    def remote(
        self, to: Any, fn: Any, args: Any = (), kwargs: Any = None, timeout: float | None = None
    ) -> RRef:
        """Runs a function there, and leaves the result there."""
        ...


def choose(cluster: Cluster, seats: int, on: Sequence[str] | None) -> list[str]:
    """Names of the services that a pipe begins on.

    Args:
        cluster: whose members they are.
        seats: how many are needed.
        on: names that the user gave; None: the stage services, in natural order.

    Raises:
        RendezvousTimeout: there are not enough.
        ArgumentError: `on` names too few, or one twice.
    """
    if on is not None:
        if len(on) < seats or len(set(on)) < len(on):
            raise ArgumentError(f"on={list(on)}: this pipeline needs {seats} different services")
        return list(on[:seats])
    there = stage_services(cluster)
    if len(there) < seats:
        raise RendezvousTimeout(
            f"this pipeline needs {seats} stage services, {len(there)} are here "
            f"({', '.join(there) or 'none'}): start more with `psf serve pipeline-stage`"
        )
    return there[:seats]


def stage_services(cluster: Cluster) -> list[str]:
    """Names of the stage services that answer, in natural order."""
    found = [each.name for each in cluster.members(ROLE) if each.state is not MemberState.STALLED]
    return sorted(found, key=natural)


@dataclass(frozen=True)
class Vacancy:
    """A place in a pipe that a service is wanted for.

    Args:
        name: of the service that was there: a new life of it goes before a spare.
        busy: names of those that have a place in the pipe.
        lost: lives that could not be reached. They are over, and the cluster has not noticed; or they were
            stalled, and answer again. So they are taken when there is nobody else.
        tried: lives that were asked in vain.
    """

    name: str
    busy: Collection[str] = ()
    lost: Collection[Life] = ()
    tried: Collection[Life] = ()

    def fits(self, member: Member) -> bool:
        """Whether a member can take it."""
        able = member.role == ROLE or member.name == self.name
        stalled = member.state is MemberState.STALLED
        return able and not stalled and member.name not in self.busy and life(member) not in self.tried

    def rank(self, member: Member) -> Any:
        """Sorts those that can: the first is to be taken."""
        return life(member) in self.lost, member.name != self.name, natural(member.name)


async def replacement(cluster: Cluster, vacancy: Vacancy, deadline: Deadline) -> Member | None:
    """A service that takes the place of one that is gone; waits for it. None: none came in time."""
    while True:
        able = [each for each in cluster.members() if vacancy.fits(each)]
        if able:
            return min(able, key=vacancy.rank)
        if deadline.expired:
            return None
        await asyncio.sleep(min(_LOOK_SECONDS, deadline.remaining()))


def life(member: Member) -> Life:
    """Which life of which service a member is."""
    return member.name, member.incarnation


def natural(name: str) -> list[tuple[int, str]]:
    """A key that sorts "stage-2" before "stage-10"."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]
