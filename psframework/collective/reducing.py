"""Reductions by way of the staging slots: who combines what. No I/O."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from psframework.collective.algorithms import bounds, combine
from psframework.collective.ops import ReduceOp
from psframework.collective.staging import Cut, Staging, even
from psframework.collective.work import Flat


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
        self._cut = Cut(len(send), staging.nbytes // send.itemsize)
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
        self._cut = Cut(len(send), even(staging.nbytes // send.itemsize))
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
        self._piece = even(staging.nbytes // send.itemsize // staging.size)
        self._cut = Cut(len(receive), self._piece)
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
