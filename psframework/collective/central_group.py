"""One group at the allreduce service: who has which rank, and the operation that they are in. No I/O."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Final

from psframework.collective import central_messages as messages
from psframework.collective.algorithms import reference
from psframework.collective.descriptor import Descriptor, Operation, check_agreement
from psframework.collective.work import Flat
from psframework.errors import (
    ArgumentError,
    DeadlineExceeded,
    NameTaken,
    PeerLost,
    PermissionDenied,
    PsfError,
)

LISTED: Final = 6
_SHARED: Final = {Operation.ALL_REDUCE: Operation.REDUCE, Operation.ALL_GATHER: Operation.GATHER}


@dataclass(slots=True, eq=False)
class Holder:
    """Who has a rank, or waits for one.

    Args:
        name: for messages.
        incarnation: of a member of the cluster; 0 for a client with an ordinary stub.
        secret: what a client shows with each call.
        wanted: the rank it asked for.
        lease: seconds for which others wait for it while it makes no call; infinity for members.
        heard: when its last call began or ended.

    Attributes:
        rank: its rank, once the group is complete.
        calls: how many of its calls are open.
        completed: the last operation whose result it got.
        gone: it has left, or was lost.
    """

    name: str
    incarnation: int = 0
    secret: int = 0
    wanted: int | None = None
    lease: float = math.inf
    heard: float = 0.0
    rank: int = -1
    calls: int = 0
    completed: int = 0
    gone: bool = False

    def __str__(self) -> str:
        return f"rank {self.rank} ({self.name})"


@dataclass(slots=True, eq=False)
class Round:
    """One operation, while ranks are in it.

    Args:
        sequence: its number.
        size: number of ranks.
        began: when the first rank came.

    Attributes:
        said: what each rank is about to do, of those that came.
        given: the array of each rank whose data is here.
        reserved: bytes that it may take.
        users: calls that still need it.
        error: how it failed.
        results: what each rank gets; None while it runs.
        on_settled: called when it has ended.
    """

    sequence: int
    size: int
    began: float
    said: dict[int, Descriptor] = field(default_factory=dict)
    given: dict[int, Flat | None] = field(default_factory=dict)
    reserved: int = 0
    users: int = 0
    error: PsfError | None = None
    results: Mapping[int, Flat | None] | None = None
    on_settled: list[Callable[[], None]] = field(default_factory=list)

    @property
    def ready(self) -> bool:
        """Whether all data is here."""
        return len(self.given) == self.size

    @property
    def settled(self) -> bool:
        """Whether it has ended."""
        return self.error is not None or self.results is not None

    @property
    def told(self) -> Descriptor:
        """What it is, by a rank that knows dtype and shape."""
        known = (each for each in self.said.values() if not each.open)
        return next(known, next(iter(self.said.values())))

    def give(self, rank: int, array: Flat | None) -> None:
        """The data of a rank is here. What differs from the first is not kept: it will not be needed."""
        self.given[rank] = array if self.said[rank].agrees(self.told) else None

    def settle(self, results: Mapping[int, Flat | None] | None, error: PsfError | None) -> None:
        """It has ended."""
        self.results, self.error = results, error
        self.given.clear()
        for tell in self.on_settled:
            tell()


class CentralGroup:
    """One life of a group: gathers, runs operations one after the other, and fails for good.

    Args:
        name: its name.
        size: number of ranks.
        generation: which life it is.
        completed: number of the last operation in the life before, if it goes on from there.
    """

    def __init__(self, name: str, size: int, generation: int, completed: int = 0) -> None:
        self.name = name
        self.size = size
        self.generation = generation
        self.holders: list[Holder] = []
        self.complete = False
        self.error: PsfError | None = None
        self.round: Round | None = None
        self.completed = completed

    @property
    def whole(self) -> bool:
        """Whether every rank is there and nothing has failed, so that nobody else can come in."""
        return self.complete and self.error is None

    @property
    def names(self) -> list[str]:
        """Of the members; by rank, once it is complete."""
        return [holder.name for holder in self.holders]

    # Ranks

    def seat(self, holder: Holder) -> None:
        """One more has come; with the last one, all get their ranks.

        Raises:
            NameTaken: another has the rank that it wants.
            ArgumentError: there is no such rank.
        """
        wanted = holder.wanted
        if wanted is not None and wanted >= self.size:
            raise ArgumentError(f"group {self.name!r} has ranks 0 to {self.size - 1}, not {wanted}")
        for other in self.holders:
            if wanted is not None and other.wanted == wanted:
                raise NameTaken(f"rank {wanted} of group {self.name!r} is taken by {other.name!r}")
        holder.completed = self.completed
        self.holders.append(holder)
        if len(self.holders) == self.size:
            self._hand_out()

    def withdraw(self, holder: Holder) -> None:
        """One that waits for the others does so no more; does nothing once the group is complete."""
        if not self.complete and holder in self.holders:
            self.holders.remove(holder)

    def _hand_out(self) -> None:
        wanted = {holder.wanted for holder in self.holders}
        left = iter([rank for rank in range(self.size) if rank not in wanted])
        for holder in self.holders:
            holder.rank = next(left) if holder.wanted is None else holder.wanted
        self.holders.sort(key=lambda holder: holder.rank)
        self.complete = True

    def find(self, rank: int, secret: int, incarnation: int) -> Holder:
        """Who calls as a rank; PermissionDenied if that is another's."""
        holder = self.holders[rank] if self.complete and rank < self.size else None
        if holder is None or holder.secret != secret or holder.incarnation not in (0, incarnation):
            raise PermissionDenied(f"rank {rank} of group {self.name!r} is not yours")
        return holder

    # Operations

    def begin(
        self, holder: Holder, descriptor: Descriptor, now: float, reserve: Callable[[int], None]
    ) -> Round:
        """A rank has come to an operation; its data may still be on its way.

        Args:
            holder: of the rank.
            descriptor: what it is about to do.
            now: the time.
            reserve: called once an operation with the bytes that it may take; may raise.

        Raises:
            PsfError: the group has failed: with what.
            ArgumentError: it has come to this operation before, or it is not the next one.
        """
        if self.error is not None:
            raise copy(self.error)
        round_ = self.round
        if round_ is not None and holder.rank in round_.said:
            raise ArgumentError(f"{holder} has come to operation {round_.sequence} of {self.name!r} already")
        if descriptor.sequence != self.completed + 1:
            raise ArgumentError(
                f"{holder} asks for operation {descriptor.sequence} of group {self.name!r}: "
                f"the next one is {self.completed + 1}"
            )
        if round_ is None:
            round_ = Round(descriptor.sequence, self.size, now)
        if not round_.reserved and (nbytes := room(descriptor, self.size)):
            reserve(nbytes)
            round_.reserved = nbytes
        round_.said[holder.rank] = descriptor
        round_.users += 1
        self.round = round_
        return round_

    def compute(self, round_: Round) -> dict[int, Flat | None]:
        """What each rank gets of a round that is ready. May run in a thread.

        Raises:
            CollectiveMismatch: ranks differ.
        """
        check_agreement(self.name, round_.said, dict(enumerate(self.names)))
        told, given = round_.told, dict(round_.given)
        if told.operation is Operation.BROADCAST:
            return {rank: None if rank == told.root else given[told.root] for rank in range(self.size)}
        shared = _SHARED.get(told.operation)
        if shared is None:
            return reference(told, given, self.size)
        result = reference(replace(told, operation=shared, root=0), given, self.size)[0]
        return dict.fromkeys(range(self.size), result)

    def finish(
        self, round_: Round, results: Mapping[int, Flat | None] | None, error: PsfError | None
    ) -> None:
        """A round that was ready has ended; the next one may begin, also after a mismatch."""
        self.completed = round_.sequence
        self.round = None
        for holder in self.holders:
            holder.completed = round_.sequence
        round_.settle(results, error)

    def late(self, seconds: float) -> DeadlineExceeded:
        """The error after waiting so long for ranks that have not come."""
        assert self.round is not None
        missing = [holder for holder in self.holders if holder.rank not in self.round.given]
        text = ", ".join(f"{each}, whose last was operation {each.completed}" for each in missing[:LISTED])
        more = f" and {len(missing) - LISTED} more" if len(missing) > LISTED else ""
        return DeadlineExceeded(
            f"operation {self.round.sequence} of group {self.name!r}, {self.round.told}: "
            f"waited {seconds:.3g} s in vain for {text}{more}"
        )

    # Ends

    def fail(self, error: PsfError) -> None:
        """Ends the group, and the operation that waits for ranks; what is being computed comes to its end."""
        self.error = self.error or error
        if self.round is not None and not self.round.ready:
            failed, self.round = self.round, None
            failed.settle(None, self.error)

    def lose(self, holder: Holder, why: str, reason: str = "closed") -> None:
        """A rank has left or died."""
        if holder.gone:
            return
        holder.gone = True
        if not self.complete:
            self.withdraw(holder)
            return
        text = f"{holder} of group {self.name!r} {why}"
        self.fail(PeerLost(text, peer=holder.name, reason=reason, rank=holder.rank))

    def silent(self, now: float) -> list[Holder]:
        """Clients that others have waited for longer than their lease, or that nobody needs any more."""
        found = []
        for holder in self.holders:
            waited = self.round is not None and holder.rank not in self.round.said
            since = max(holder.heard, self.round.began if self.round is not None else 0.0)
            ended = self.error is not None
            if not holder.gone and not holder.calls and (waited or ended) and now - since > holder.lease:
                found.append(holder)
        return found


def room(descriptor: Descriptor, size: int) -> int:
    """Bytes that an operation takes: what ranks give, and the results; 0 if this rank doesn't know yet."""
    operation, n = descriptor.operation, messages.nbytes(descriptor)
    given = 1 if operation in (Operation.BROADCAST, Operation.SCATTER) else size
    made = {
        Operation.BROADCAST: 0,
        Operation.REDUCE_SCATTER: 2,
        Operation.ALL_GATHER: size,
        Operation.GATHER: size,
        Operation.ALL_TO_ALL: size,
    }
    return n * (given + made.get(operation, 1))
