"""What one rank does in each step of a collective over hosts. No I/O.

The lowest rank of each host leads. An operation goes *up* from the ranks of a host to its leader, *across*
between leaders, and *down* again, so that of a host one array crosses the network where its ranks have many.
float16 and bfloat16 travel as float32 till the end, and are rounded once; AVG is a sum that is divided once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator
from dataclasses import replace
from enum import Enum
from typing import Any, Final, TypeAlias

import numpy as np

from psframework import backend
from psframework.collective.descriptor import ANY, Descriptor, Operation
from psframework.collective.hosts import Hosts
from psframework.collective.ops import ReduceOp
from psframework.collective.work import Flat, Work
from psframework.errors import ArgumentError, CollectiveMismatch

LEADER: Final = 0
"""Of the ranks of a host, which one leads."""


class Phase(Enum):
    """Which way a step goes."""

    UP = "up"
    ACROSS = "across"
    DOWN = "down"


Steps: TypeAlias = Generator[tuple[Phase, Work], None, None]
Data: TypeAlias = Generator[tuple[Phase, Work], None, Flat | None]


class Plan:
    """The steps of one rank.

    Steps up and down are left out where a rank is alone on its host, steps across where it does not lead, or
    there is one host: whoever runs the steps has no transport for those.

    Args:
        hosts: who is where.
        rank: whose steps.
    """

    def __init__(self, hosts: Hosts, rank: int) -> None:
        self._hosts = hosts
        self._rank = rank
        self._host, index = hosts.place(rank)
        self._leads = index == LEADER
        self._here = len(hosts.ranks[self._host])

    def steps(self, work: Work) -> Steps:
        """The steps of an operation, in their order; what a step receives is used when the next is asked for.

        Raises:
            ArgumentError: not an operation of all ranks.
        """
        steps = _STEPS.get(work.descriptor.operation)
        if steps is None:
            raise ArgumentError(f"{work.descriptor.operation.name.lower()} is no operation of all ranks")
        return steps(self, work)

    def _barrier(self, work: Work) -> Steps:
        for phase in Phase:
            if phase is not Phase.ACROSS or self._leads:
                yield phase, _check(work)

    def _refuse(self, work: Work) -> Steps:
        refusal = Work(work.descriptor, None, None, work.deadline, work.done)
        yield Phase.UP, refusal
        yield Phase.ACROSS, refusal
        raise CollectiveMismatch(work.descriptor.note)  # nobody else is there to say so

    # Reductions

    def _all_reduce(self, work: Work) -> Steps:
        out, total = _given(work.receive), _wide(_given(work.send))
        yield from self._reduce_here(work, total)
        if self._leads:
            yield Phase.ACROSS, _reduction(work, Operation.ALL_REDUCE, total, total)
            self._finish(work, total, out)
        yield from self._spread(work, out)

    def _reduce(self, work: Work) -> Steps:
        sent, out = _given(work.send), work.receive
        total = self._own(work)
        yield from self._reduce_here(work, total)
        if self._leads:
            host, _ = self._hosts.place(work.descriptor.root)
            got = total if host == self._host else None
            yield Phase.ACROSS, _reduction(work, Operation.REDUCE, total, got, host)
            if got is not None:
                out = np.empty_like(sent) if out is None else out
                self._finish(work, got, out)
        yield from self._deliver(work, out, len(sent))

    def _reduce_scatter(self, work: Work) -> Steps:
        out, total = _given(work.receive), self._own(work)
        yield from self._reduce_here(work, total)
        mine = None
        if self._leads:
            parts = self._hosts.by_host(total)
            got = parts if self._hosts.count == 1 else np.empty(self._hosts.most * len(out), total.dtype)
            yield Phase.ACROSS, _reduction(work, Operation.REDUCE_SCATTER, parts, got)
            mine = np.empty(self._here * len(out), out.dtype)
            self._finish(work, got[: len(mine)], mine)
        yield from self._hand_out(work, mine)

    def _own(self, work: Work) -> Flat:
        """The array that is reduced into: at a leader never the user's, unless that receives the result."""
        sent = _given(work.send)
        total = _wide(sent)
        return total.copy() if self._leads and total is sent and len(sent) and not _in_place(work) else total

    def _reduce_here(self, work: Work, total: Flat) -> Steps:
        got = total if self._leads else None
        yield Phase.UP, _reduction(work, Operation.REDUCE, total, got, LEADER)

    def _finish(self, work: Work, total: Flat, out: Flat) -> None:
        """Divides and rounds, once."""
        with np.errstate(all="ignore"):  # an overflow is an infinity, as in every other sum of arrays
            if work.descriptor.op is ReduceOp.AVG:
                np.divide(total, self._hosts.size, out=total)
            if out.dtype != total.dtype or not np.may_share_memory(out, total):
                np.copyto(out, total, casting="unsafe")

    # Gathering

    def _all_gather(self, work: Work) -> Steps:
        out = _given(work.receive)
        mine = yield from self._gather_here(work)
        if mine is not None:
            got = mine if self._hosts.count == 1 else np.empty(self._hosts.count * len(mine), mine.dtype)
            yield Phase.ACROSS, _flat(work, Operation.ALL_GATHER, mine, got)
            np.copyto(out, self._hosts.by_rank(got))
        yield from self._spread(work, out)

    def _gather(self, work: Work) -> Steps:
        mine = yield from self._gather_here(work)
        out = work.receive
        if mine is not None:
            host, _ = self._hosts.place(work.descriptor.root)
            got = np.empty(self._hosts.count * len(mine), mine.dtype) if host == self._host else None
            got = mine if self._hosts.count == 1 else got
            yield Phase.ACROSS, _flat(work, Operation.GATHER, mine, got, root=host)
            if got is not None:
                whole = self._hosts.by_rank(got)
                if out is None:
                    out = whole
                else:
                    np.copyto(out, whole)
        yield from self._deliver(work, out, self._hosts.size * len(_given(work.send)))

    def _all_to_all(self, work: Work) -> Steps:
        rows = yield from self._gather_here(work)
        if rows is not None:
            rows = rows[: self._here * len(_given(work.send))]
            blocks = self._hosts.to_hosts(rows, self._host)
            got = blocks if self._hosts.count == 1 else np.empty_like(blocks)
            yield Phase.ACROSS, _flat(work, Operation.ALL_TO_ALL, blocks, got)
            rows = self._hosts.from_hosts(got, self._host)
        yield from self._hand_out(work, rows)

    def _gather_here(self, work: Work) -> Data:
        """The arrays of this host at its leader, with room for as many as the largest host has."""
        sent = _given(work.send)
        if not self._leads:
            yield Phase.UP, _flat(work, Operation.GATHER, sent, None, root=LEADER)
            return None
        mine = np.zeros(self._hosts.most * len(sent), sent.dtype)
        got = mine[: self._here * len(sent)]
        if self._here == 1:
            np.copyto(got, sent)
        yield Phase.UP, _flat(work, Operation.GATHER, sent, got, root=LEADER)
        return mine

    # Down to the ranks of the host

    def _spread(self, work: Work, array: Flat) -> Steps:
        """What the leader has, to all."""
        send, receive = (array, None) if self._leads else (None, array)
        yield Phase.DOWN, _flat(work, Operation.BROADCAST, send, receive, root=LEADER)

    def _deliver(self, work: Work, array: Flat | None, n: int) -> Steps:
        """What a leader has, to the root: the others on its host get it too, and drop it."""
        host, index = self._hosts.place(work.descriptor.root)
        if host != self._host or index == LEADER:
            yield Phase.DOWN, _check(work)
            return
        if array is None:
            array = np.empty(n, backend.dtype_from_name(work.descriptor.dtype))
        yield from self._spread(work, array)

    def _hand_out(self, work: Work, rows: Flat | None) -> Steps:
        """Its part of what the leader has, to each."""
        out = _given(work.receive)
        if rows is not None and self._here == 1:
            np.copyto(out, rows)
        yield (
            Phase.DOWN,
            _flat(work, Operation.SCATTER, rows, out, root=LEADER, shape=(self._here * len(out),)),
        )

    # From one rank; others may be open, and learn dtype and shape from it

    def _broadcast(self, work: Work) -> Steps:
        trip = Trip(work, self._hosts.size)
        root = work.descriptor.root
        host, index = self._hosts.place(root)
        here, early = host == self._host, host == self._host and index != LEADER
        data = work.send if self._rank == root else work.receive
        if early:  # all ranks of the root's host get it on its way to the leader
            data = yield from self._pass(Phase.UP, trip, data, index, self._rank == root)
        else:
            yield Phase.UP, _check(work)
        if self._leads:
            data = yield from self._pass(Phase.ACROSS, trip, data, host, here)
        if early:
            yield Phase.DOWN, _check(work)
        else:
            data = yield from self._pass(Phase.DOWN, trip, data, LEADER, self._leads)
        if self._rank != root:
            work.receive = data

    def _pass(self, phase: Phase, trip: Trip, data: Flat | None, root: int, gives: bool) -> Data:
        send, receive = (data, None) if gives else (None, data)
        step = trip.step(Operation.BROADCAST, root, self._hosts.size, send, receive)
        yield phase, step
        return data if gives else step.receive

    def _scatter(self, work: Work) -> Steps:
        trip = Trip(work, self._hosts.size)
        root = work.descriptor.root
        host, index = self._hosts.place(root)
        data = work.send
        if host == self._host and index != LEADER:
            if data is None and not work.descriptor.open:
                data = trip.room(work.descriptor)
            trip.allocate = trip.room
            data = yield from self._pass(Phase.UP, trip, data, index, self._rank == root)
        else:
            yield Phase.UP, _check(work)
        mine = None
        if self._leads:
            mine = yield from self._scatter_across(trip, data if host == self._host else None, host)
        trip.allocate = lambda _: trip.receive()
        if not trip.known.open:
            trip.receive()
        step = trip.step(Operation.SCATTER, LEADER, self._here, mine, work.receive)
        if mine is not None and self._here == 1:
            np.copyto(_given(work.receive), mine)
        yield Phase.DOWN, step
        work.receive = step.receive

    def _scatter_across(self, trip: Trip, data: Flat | None, root: int) -> Data:
        """The parts of the ranks of this host."""
        hosts = self._hosts
        send = None if data is None else hosts.by_host(data)
        got = None if trip.known.open else trip.room(trip.known, hosts.most, hosts.size)
        trip.allocate = lambda told: trip.room(told, 1, hosts.count)
        step = trip.step(Operation.SCATTER, root, hosts.count * hosts.most, send, got)
        yield Phase.ACROSS, step
        got = send if hosts.count == 1 else step.receive
        each = math.prod(trip.known.shape) // hosts.size
        return _given(got)[: self._here * each]


class Trip:
    """An array on its way from the root of an operation, and what an open rank has learned of it.

    Args:
        work: the operation.
        size: number of ranks.

    Attributes:
        known: what this rank is about to do; no longer open once the first step has brought the root's word.
        allocate: makes the array of an open rank from the descriptor of a step.
    """

    def __init__(self, work: Work, size: int) -> None:
        self.known = work.descriptor
        self.allocate: Callable[[Descriptor], Flat] = lambda _: self.receive()
        self._work = work
        self._size = size

    def step(
        self, operation: Operation, root: int, parts: int, send: Flat | None, receive: Flat | None
    ) -> Work:
        """A step with so many parts of the size that each rank's has; `size` of them are the whole array."""
        known, work = self.known, self._work
        fields: dict[str, Any] = {"operation": operation, "root": root, "note": str(known)}
        if known.open:
            return Work(replace(known, **fields), None, None, work.deadline, work.done, self._learning(parts))
        shape = _scaled(known.shape, self._size, parts)
        return Work(replace(known, shape=shape, **fields), send, receive, work.deadline, work.done)

    def receive(self) -> Flat:
        """The user's array of this rank, made when it is known how large it is."""
        if self._work.receive is None:
            assert self._work.allocate is not None
            self._work.receive = self._work.allocate(self.known)
        return self._work.receive

    def room(self, told: Descriptor, parts: int = 1, of: int = 1) -> Flat:
        """An array of `parts` of `of` parts of what a descriptor says."""
        return np.empty(math.prod(told.shape) // of * parts, backend.dtype_from_name(told.dtype))

    def _learning(self, parts: int) -> Callable[[Descriptor], Flat]:
        def learn(told: Descriptor) -> Flat:
            shape = _scaled(told.shape, parts, self._size)
            self.known = replace(self.known, open=False, dtype=told.dtype, shape=shape)
            return self.allocate(told)

        return learn


def _scaled(shape: tuple[int, ...], parts: int, into: int) -> tuple[int, ...]:
    return shape if parts == into else (shape[0] // parts * into, *shape[1:])


def _check(work: Work) -> Work:
    """A step without data, in which ranks compare what they are about to do."""
    descriptor = replace(work.descriptor, operation=Operation.BARRIER, note=str(work.descriptor))
    return Work(descriptor, None, None, work.deadline, work.done)


def _flat(work: Work, operation: Operation, send: Flat | None, receive: Flat | None, **fields: Any) -> Work:
    """A step with arrays of one axis; `fields` of its descriptor that are not as the arrays say."""
    array = _given(receive if send is None else send)
    said = {"op": None, "root": ANY, "dtype": backend.dtype_name(array.dtype), "shape": array.shape}
    descriptor = replace(work.descriptor, operation=operation, note=str(work.descriptor), **(said | fields))
    return Work(descriptor, send, receive, work.deadline, work.done)


def _reduction(work: Work, operation: Operation, send: Flat, receive: Flat | None, root: int = ANY) -> Work:
    op = ReduceOp.SUM if work.descriptor.op is ReduceOp.AVG else work.descriptor.op
    return _flat(work, operation, send, receive, op=op, root=root)


def _wide(array: Flat) -> Flat:
    return array.astype(np.float32) if backend.is_narrow(array.dtype) else array


def _in_place(work: Work) -> bool:
    return work.receive is not None and np.may_share_memory(_given(work.send), work.receive)


def _given(array: Flat | None) -> Flat:
    if array is None:
        raise ArgumentError("an array is missing")
    return array


_STEPS: Final[dict[Operation, Callable[[Plan, Work], Steps]]] = {
    Operation.ALL_REDUCE: Plan._all_reduce,
    Operation.BROADCAST: Plan._broadcast,
    Operation.REDUCE: Plan._reduce,
    Operation.ALL_GATHER: Plan._all_gather,
    Operation.GATHER: Plan._gather,
    Operation.SCATTER: Plan._scatter,
    Operation.REDUCE_SCATTER: Plan._reduce_scatter,
    Operation.ALL_TO_ALL: Plan._all_to_all,
    Operation.BARRIER: Plan._barrier,
    Operation.REFUSE: Plan._refuse,
}
