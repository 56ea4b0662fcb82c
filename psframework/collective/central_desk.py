"""All groups of the allreduce service: who comes in where, and how much memory they take. No I/O."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from psframework.collective.central_group import CentralGroup, Holder, Round
from psframework.errors import ArgumentError, NotRegistered, ResourceExhausted, StaleTerm

RETRY_SECONDS: Final = 0.05
MOST_GROUPS: Final = 10_000
MOST_RANKS: Final = 1 << 16
LONGEST_NAME: Final = 400
ABANDONED_SECONDS: Final = 3600.0


@dataclass(frozen=True, slots=True)
class Ask:
    """What somebody who joins asks for.

    Args:
        group: name of the group.
        size: number of ranks.
        holder: who.
        generation: which life; 0: the one that gathers.
        completed: number of the last operation in the life before, if it goes on from there.
    """

    group: str
    size: int
    holder: Holder
    generation: int = 0
    completed: int = 0

    def check(self) -> None:
        """Raises ArgumentError if it can't be."""
        if not 0 < len(self.group) <= LONGEST_NAME:
            raise ArgumentError(f"a group's name has 1 to {LONGEST_NAME} characters, not {len(self.group)}")
        if not 1 <= self.size <= MOST_RANKS:
            raise ArgumentError(f"group {self.group!r} of {self.size}: 1 to {MOST_RANKS} ranks")


class CentralDesk:
    """The groups of one service.

    Args:
        limit: bytes that the arrays of all operations may take at once.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self.groups: dict[str, CentralGroup] = {}
        self._generation = 0

    # In and out

    def join(self, ask: Ask) -> CentralGroup | None:
        """Lets somebody into a group; None while it must wait: the group is complete, and nobody is lost.

        Raises:
            StaleTerm: a later generation has begun.
            ArgumentError: the others want another size.
            NameTaken: the rank has gone to another.
            ResourceExhausted: there are too many groups.
        """
        ask.check()
        group = self.groups.get(ask.group)
        if group is None or group.error is not None or group.generation < ask.generation:
            group = self._new(ask, group)
        elif group.complete and not ask.generation:
            return None
        elif group.complete or ask.generation not in (0, group.generation):
            raise StaleTerm(
                f"generation {ask.generation} of group {ask.group!r}: {group.generation} has begun"
            )
        if group.size != ask.size:
            raise ArgumentError(
                f"{ask.holder.name!r} wants group {ask.group!r} to have {ask.size} ranks, "
                f"{group.holders[0].name!r}: {group.size}"
            )
        if group.completed != ask.completed:
            raise ArgumentError(
                f"{ask.holder.name!r} goes on after operation {ask.completed} of group {ask.group!r}, "
                f"{group.holders[0].name!r} after {group.completed}"
            )
        group.seat(ask.holder)
        self.groups[ask.group] = group
        return group

    def _new(self, ask: Ask, old: CentralGroup | None) -> CentralGroup:
        if old is None and len(self.groups) >= MOST_GROUPS:
            raise ResourceExhausted(f"there are {MOST_GROUPS} groups already", retry_after=1.0)
        last = max(self._generation, old.generation if old else 0)
        if ask.generation and old is not None and ask.generation <= old.generation:
            raise StaleTerm(f"generation {ask.generation} of group {ask.group!r} is over")
        if old is not None:
            old.fail(StaleTerm(f"generation {old.generation} of group {ask.group!r} is over: another began"))
        group = CentralGroup(ask.group, ask.size, ask.generation or last + 1, ask.completed)
        self._generation = max(last, group.generation)
        return group

    def find(self, name: str, generation: int) -> CentralGroup:
        """A group that somebody has a rank in.

        Raises:
            NotRegistered: there is none of that name.
            StaleTerm: of that name there is another one.
        """
        group = self.groups.get(name)
        if group is None:
            raise NotRegistered(f"no group {name[:LONGEST_NAME]!r} here: join it first")
        if group.generation != generation:
            raise StaleTerm(f"generation {generation} of group {name!r} is over, this is {group.generation}")
        return group

    def lose(self, group: CentralGroup, holder: Holder, why: str, reason: str = "closed") -> None:
        """A rank is given back or lost; the group is forgotten with its last one."""
        group.lose(holder, why, reason)
        if all(each.gone for each in group.holders) and self.groups.get(group.name) is group:
            del self.groups[group.name]

    def lose_member(self, incarnation: int, why: str, reason: str) -> None:
        """A member of the cluster is lost, and with it its ranks."""
        for group in list(self.groups.values()):
            for holder in list(group.holders):
                if holder.incarnation == incarnation:
                    self.lose(group, holder, why, reason)

    def expire(self, now: float) -> None:
        """Gives up clients that have been silent for too long."""
        for group in list(self.groups.values()):
            for holder in group.silent(now):
                why = f"made no call for {now - holder.heard:.3g} s"
                self.lose(group, holder, why, "lease")
            if all(not each.calls and now - each.heard > _patience(each) for each in group.holders):
                for holder in list(group.holders):
                    self.lose(group, holder, "made no call for an hour", "lease")

    # Memory

    def reserve(self, nbytes: int) -> None:
        """Takes room for one operation.

        It is taken for all ranks at once, by the first, so that operations that have begun can end.

        Raises:
            ResourceExhausted: there is not so much; try again, unless there never will be.
        """
        if self.used + nbytes > self.limit:
            text = f"the operation takes {nbytes} bytes here; {self.used} of {self.limit} are in use"
            raise ResourceExhausted(text, retry_after=RETRY_SECONDS if nbytes <= self.limit else 0.0)
        self.used += nbytes

    def let_go(self, round_: Round) -> None:
        """One call needs a round no more; with the last one, its room is free."""
        round_.users -= 1
        if not round_.users:
            self.used -= round_.reserved
            round_.reserved = 0


def _patience(holder: Holder) -> float:
    return max(holder.lease, ABANDONED_SECONDS)
