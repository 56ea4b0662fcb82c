"""What each rank puts into its staging slots and takes out of the others', chunk by chunk. No I/O.

Every operation over shared memory is a number of *rounds*. In round k a rank fills its slot, waits until all
have filled theirs, and drains: takes what it needs out of them. A rank writes only its own slots, and it
fills the next one while it waits.

Slots are used in turn, `TURNS` of them, so that one barrier a round is enough. The next slot is filled before
the barrier of round k, so after that of k - 1: all had drained round k - 2 by then, and with it (see `Share`)
what was filled in round k - 3, which is the slot's last content if there are four.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from psframework.collective.algorithms import bounds, combine
from psframework.collective.descriptor import ANY, Operation
from psframework.collective.ops import ReduceOp
from psframework.collective.work import Flat, Work

TURNS: Final = 4
"""Slots that a rank uses in turn at least."""

SMALL: Final = 64 << 10
"""Up to so many bytes, each rank combines whole arrays; beyond, a part each."""

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True, eq=False)
class Staging:
    """The slots of all ranks, and which of them this one is.

    Args:
        rank, size: of the group.
        slots: `slots[rank]`, all of equal length: the first `TURNS` are used in turn, or else the others.
        step: number of the operation's first barrier in the life of the group.
        far: by rank, whether it uses the others (see reach.py); set for others once they have said so.
    """

    rank: int
    size: int
    slots: list[list[Bytes]]
    step: int
    far: list[bool]

    @property
    def nbytes(self) -> int:
        """Length of a slot."""
        return len(self.slots[0][0])

    def bytes(self, rank: int, turn: int, start: int, stop: int) -> Bytes:
        """Bytes of the slot that `rank` fills in round `turn`."""
        slots, step = self.slots[rank], self.step + turn
        # Each kind in its own turn, so that no change of mind brings a slot back before it was read.
        number = TURNS + step % (len(slots) - TURNS) if self.far[rank] else step % TURNS
        return slots[number][start:stop]

    def flat(self, rank: int, turn: int, cut: slice, dtype: np.dtype[Any]) -> Flat:
        """The same, as elements."""
        size = dtype.itemsize
        return self.bytes(rank, turn, cut.start * size, cut.stop * size).view(dtype)


class Exchange(Protocol):
    """One operation of one rank."""

    @property
    def rounds(self) -> int:
        """How many, at least 1; the same on all ranks."""
        ...

    def fill(self, turn: int) -> int:
        """Writes this rank's slot; returns how many bytes."""
        ...

    def drain(self, turn: int) -> None:
        """Reads the slots of all, which have been filled."""
        ...


def whole(array: Flat | None) -> Bytes:
    """The bytes of an array; none of None."""
    return np.empty(0, np.uint8) if array is None else array.view(np.uint8)


class _Cut:
    """`total` units cut into chunks of at most `most`."""

    def __init__(self, total: int, most: int) -> None:
        self.total, self.most = total, max(1, most)
        self.rounds = max(1, -(-total // self.most))

    def __call__(self, turn: int) -> slice:
        start = turn * self.most
        return slice(start, min(start + self.most, self.total))


def _even(count: int) -> int:
    """Rounded down, so that what lies behind starts at a cache line."""
    return count - count % 64 if count > 64 else count


class Nothing:
    """A barrier."""

    rounds = 1

    def fill(self, turn: int) -> int:
        """Nothing."""
        return 0

    def drain(self, turn: int) -> None:
        """Nothing."""


class Spread:
    """BROADCAST, ALL_GATHER, GATHER: some ranks' arrays go whole to some ranks.

    Args:
        staging: the slots.
        nbytes: of each array.
        send: what this rank gives; None if nobody needs it.
        receive: where the arrays of all `sources` go, one after the other; None if this rank needs none.
        sources: ranks that give something.
    """

    def __init__(
        self, staging: Staging, nbytes: int, send: Flat | None, receive: Flat | None, sources: range
    ) -> None:
        self._staging, self._sources = staging, sources
        self._send = None if send is None else whole(send)
        self._receive = None if receive is None else whole(receive)
        self._cut = _Cut(nbytes, staging.nbytes)
        self.rounds = self._cut.rounds

    def fill(self, turn: int) -> int:
        if self._send is None:
            return 0
        given = self._send[self._cut(turn)]
        self._staging.bytes(self._staging.rank, turn, 0, len(given))[:] = given
        return len(given)

    def drain(self, turn: int) -> None:
        if self._receive is None:
            return
        cut = self._cut(turn)
        for place, rank in enumerate(self._sources):
            if rank == self._staging.rank and self._send is not None:
                given = self._send[cut]
            else:
                given = self._staging.bytes(rank, turn, 0, cut.stop - cut.start)
            start = place * self._cut.total
            self._receive[start + cut.start : start + cut.stop] = given


class Deal:
    """SCATTER, ALL_TO_ALL: some ranks' arrays are cut, and part r goes to rank r.

    Args:
        staging: the slots.
        nbytes: of each part.
        send: what this rank gives, in `size` parts; None if nothing.
        receive: where its parts go, one from each of `sources`.
        sources: ranks that give something.
    """

    def __init__(
        self, staging: Staging, nbytes: int, send: Flat | None, receive: Flat | None, sources: range
    ) -> None:
        self._staging, self._sources = staging, sources
        self._send = None if send is None else whole(send)
        self._receive = whole(receive)
        self._piece = _even(staging.nbytes // staging.size)
        self._cut = _Cut(nbytes, self._piece)
        self.rounds = self._cut.rounds

    def fill(self, turn: int) -> int:
        if self._send is None:
            return 0
        cut, own = self._cut(turn), self._staging.rank
        for rank in range(self._staging.size):
            if rank != own:
                start, given = rank * self._piece, rank * self._cut.total
                place = self._staging.bytes(own, turn, start, start + cut.stop - cut.start)
                place[:] = self._send[given + cut.start : given + cut.stop]
        return int(cut.stop - cut.start) * (self._staging.size - 1)

    def drain(self, turn: int) -> None:
        cut, own = self._cut(turn), self._staging.rank
        start = own * self._piece
        for place, rank in enumerate(self._sources):
            if rank == own and self._send is not None:
                given = self._send[own * self._cut.total :][cut]
            else:
                given = self._staging.bytes(rank, turn, start, start + cut.stop - cut.start)
            self._receive[place * self._cut.total :][cut] = given


class Combine:
    """ALL_REDUCE, REDUCE: whoever wants the result combines all chunks itself. One round a chunk.

    Args:
        staging: the slots.
        op: the reduction.
        send: what this rank gives.
        receive: where the result goes, maybe `send` itself; None if this rank does not want it.
    """

    def __init__(self, staging: Staging, op: ReduceOp, send: Flat, receive: Flat | None) -> None:
        self._staging, self._op, self._send, self._receive = staging, op, send, receive
        self._cut = _Cut(len(send), staging.nbytes // send.itemsize)
        self.rounds = self._cut.rounds

    def fill(self, turn: int) -> int:
        given = self._send[self._cut(turn)].view(np.uint8)
        self._staging.bytes(self._staging.rank, turn, 0, len(given))[:] = given
        return len(given)

    def drain(self, turn: int) -> None:
        if self._receive is None:
            return
        cut, staging = self._cut(turn), self._staging
        inside = slice(0, cut.stop - cut.start)
        parts = [
            self._send[cut] if rank == staging.rank else staging.flat(rank, turn, inside, self._send.dtype)
            for rank in range(staging.size)
        ]
        combine(self._op, parts, staging.size, self._receive[cut])


class Share:
    """ALL_REDUCE, REDUCE of many ranks: of each chunk, rank r combines part r for all.

    Three things go on at once, so that one barrier a round is enough: chunk k is filled, chunk k - 1 is
    combined, chunk k - 2 is taken out.
    """

    def __init__(self, staging: Staging, op: ReduceOp, send: Flat, receive: Flat | None) -> None:
        self._staging, self._op, self._send, self._receive = staging, op, send, receive
        self._cut = _Cut(len(send), _even(staging.nbytes // send.itemsize))
        self.rounds = self._cut.rounds + 1

    def fill(self, turn: int) -> int:
        if turn == self._cut.rounds:
            return 0
        nbytes = 0
        for rank, (cut, inside) in enumerate(self._parts(turn)):
            if rank != self._staging.rank:  # its own part it takes from `send`
                given = self._send[cut]
                np.copyto(self._slot(self._staging.rank, turn, inside), given)
                nbytes += given.nbytes
        return nbytes

    def drain(self, turn: int) -> None:
        if turn < self._cut.rounds:
            self._combine(turn)
        if turn > 0 and self._receive is not None:
            for rank, (cut, inside) in enumerate(self._parts(turn - 1)):
                np.copyto(self._receive[cut], self._slot(rank, turn - 1, inside))

    def _combine(self, turn: int) -> None:
        own = self._staging.rank
        cut, inside = self._parts(turn)[own]
        parts = [
            self._send[cut] if rank == own else self._slot(rank, turn, inside)
            for rank in range(self._staging.size)
        ]
        combine(self._op, parts, self._staging.size, self._slot(own, turn, inside))

    def _parts(self, turn: int) -> list[tuple[slice, slice]]:
        """Where each rank's part of a chunk lies in the arrays, and in the slots."""
        cut = self._cut(turn)
        return [
            (slice(cut.start + low, cut.start + high), slice(low, high))
            for low, high in pairwise(bounds(cut.stop - cut.start, self._staging.size))
        ]

    def _slot(self, rank: int, turn: int, inside: slice) -> Flat:
        return self._staging.flat(rank, turn, inside, self._send.dtype)


class ReduceScatter:
    """REDUCE_SCATTER: rank r combines part r for itself."""

    def __init__(self, staging: Staging, op: ReduceOp, send: Flat, receive: Flat) -> None:
        self._staging, self._op, self._send, self._receive = staging, op, send, receive
        self._piece = _even(staging.nbytes // send.itemsize // staging.size)
        self._cut = _Cut(len(receive), self._piece)
        self.rounds = self._cut.rounds

    def fill(self, turn: int) -> int:
        own, nbytes = self._staging.rank, 0
        for rank in range(self._staging.size):
            if rank != own:
                given = self._given(turn, rank)
                np.copyto(self._slot(own, turn, rank), given)
                nbytes += given.nbytes
        return nbytes

    def drain(self, turn: int) -> None:
        own = self._staging.rank
        parts = [
            self._given(turn, own) if rank == own else self._slot(rank, turn, own)
            for rank in range(self._staging.size)
        ]
        combine(self._op, parts, self._staging.size, self._receive[self._cut(turn)])

    def _given(self, turn: int, rank: int) -> Flat:
        cut, start = self._cut(turn), rank * self._cut.total
        return self._send[start + cut.start : start + cut.stop]

    def _slot(self, rank: int, turn: int, part: int) -> Flat:
        cut, start = self._cut(turn), part * self._piece
        return self._staging.flat(rank, turn, slice(start, start + cut.stop - cut.start), self._send.dtype)


def plan(work: Work, staging: Staging) -> Exchange:
    """How a rank does `work`; what it receives may still be open (see `settle`)."""
    return _PLANS[work.descriptor.operation](work, staging)


def _reduce(work: Work, staging: Staging) -> Exchange:
    descriptor, send = work.descriptor, _given(work)
    receive = work.receive if descriptor.root in (staging.rank, ANY) else None
    kind = Combine if staging.size == 2 or send.nbytes <= SMALL else Share
    return kind(staging, reduction(work), send, receive)


def _reduce_scatter(work: Work, staging: Staging) -> Exchange:
    return ReduceScatter(staging, reduction(work), _given(work), _wanted(work))


def _gather(work: Work, staging: Staging) -> Exchange:
    send = _given(work)
    return Spread(staging, send.nbytes, send, work.receive, range(staging.size))


def _broadcast(work: Work, staging: Staging) -> Exchange:
    root = work.descriptor.root
    array = _given(work) if staging.rank == root else _wanted(work)
    mine = staging.rank == root
    return Spread(
        staging, array.nbytes, array if mine else None, None if mine else array, range(root, root + 1)
    )


def _scatter(work: Work, staging: Staging) -> Exchange:
    root = work.descriptor.root
    receive = _wanted(work)
    send = _given(work) if staging.rank == root else None
    return Deal(staging, receive.nbytes, send, receive, range(root, root + 1))


def _all_to_all(work: Work, staging: Staging) -> Exchange:
    receive = _wanted(work)
    return Deal(staging, receive.nbytes // staging.size, _given(work), receive, range(staging.size))


def _nothing(work: Work, staging: Staging) -> Exchange:
    return Nothing()


def _given(work: Work) -> Flat:
    assert work.send is not None, f"{work.descriptor} without an array to send"
    return work.send


def _wanted(work: Work) -> Flat:
    assert work.receive is not None, f"{work.descriptor} without an array to receive into"
    return work.receive


def reduction(work: Work) -> ReduceOp:
    """The reduction of an operation that has one."""
    assert work.descriptor.op is not None, f"{work.descriptor} without a reduction"
    return work.descriptor.op


_PLANS: Final[dict[Operation, Callable[[Work, Staging], Exchange]]] = {
    Operation.ALL_REDUCE: _reduce,
    Operation.REDUCE: _reduce,
    Operation.REDUCE_SCATTER: _reduce_scatter,
    Operation.ALL_GATHER: _gather,
    Operation.GATHER: _gather,
    Operation.BROADCAST: _broadcast,
    Operation.SCATTER: _scatter,
    Operation.ALL_TO_ALL: _all_to_all,
    Operation.BARRIER: _nothing,
    Operation.REFUSE: _nothing,
}
