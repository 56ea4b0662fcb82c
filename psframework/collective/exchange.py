"""Operations over shared memory: copies through the staging slots, and the way of each operation. No I/O."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from psframework.collective.descriptor import ANY, Operation
from psframework.collective.ops import ReduceOp
from psframework.collective.reducing import Combine, ReduceScatter, Share
from psframework.collective.staging import Cut, Exchange, Staging, even, whole
from psframework.collective.work import Flat, Work

SMALL: Final = 64 << 10
"""Up to so many bytes, each rank combines whole arrays; beyond, a part each."""


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
        self._cut = Cut(nbytes, staging.nbytes)
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
        self._piece = even(staging.nbytes // staging.size)
        self._cut = Cut(nbytes, self._piece)
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
