"""A shard's part of one model: parameters, optimizer state, versions and dedupe, and the arithmetic on them.

All methods run in one thread at a time; they neither wait nor decide. Neighbouring partitions are updated in
one go, block by block, and new values are copied out while a block is still in the cache.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from psframework.backend import Array
from psframework.errors import ArgumentError
from psframework.optim.blocks import run_blocks
from psframework.optim.rule import UpdateRule, apply_blocks
from psframework.parameter_server.dedupe import Dedupe, Outcome
from psframework.parameter_server.partition import CUT_ANYWHERE, Partition
from psframework.parameter_server.sources import Arena, Piece, Source

_CACHED_PARTITIONS = 4  # with several readers, their copies are made while a few MiB are still in the cache
_COPY_BYTES = 1 << 20


@dataclass(slots=True)
class Pull:
    """What one pull wants, and then what it got.

    Args:
        known: versions that the caller holds, by position; empty for none.
        sink: where changed values are written; None: they are only listed.
        changed: positions of what the caller did not hold, in order (result).
        versions: of those (result).
    """

    known: Sequence[int] = ()
    sink: Source | None = None
    changed: list[int] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)

    def wants(self, position: int, version: int) -> bool:
        """Whether the caller lacks this version."""
        return position >= len(self.known) or self.known[position] != version


@dataclass(frozen=True, slots=True)
class Gradient:
    """The gradients of one push.

    Args:
        writer: whose.
        sequence: number of the push.
        source: where the values lie.
        present: positions that have a gradient.
    """

    writer: int
    sequence: int
    source: Source
    present: frozenset[int]


class Table:
    """The partitions of one model on one shard.

    A *position* is a partition's place in this shard's list. A partition's version is 1 plus its updates.

    Args:
        partitions: of this shard, in the order of the arena.
        rule: how gradients are applied.

    Raises:
        ArgumentError: the rule is not elementwise.

    Attributes:
        position: of each partition, by its index in the model.
        versions: by position.
        updates: partition updates so far.
        model_offsets: first byte of each partition in the arena of the whole model, by position.
        model_end: that arena reaches at least to this byte.
    """

    def __init__(self, partitions: Sequence[Partition], rule: UpdateRule) -> None:
        rule.require_elementwise(CUT_ANYWHERE)
        self.partitions = tuple(partitions)
        self.rule = rule
        self.versions = [1] * len(self.partitions)
        self.dedupe = [Dedupe() for _ in self.partitions]
        self.updates = 0
        self.everything = frozenset(range(len(self.partitions)))
        self.model_offsets = [partition.offset for partition in self.partitions]
        self.model_end = max((partition.stop for partition in self.partitions), default=0)
        self.position = {partition.index: i for i, partition in enumerate(self.partitions)}
        self._values = Arena.packed(self.partitions)
        self._span_of, self._first_element = _spans(self.partitions)
        self._state = [rule.init_state(self._values.array(piece)) for piece in self._whole_spans()]
        self._staged: dict[int, Gradient] = {}
        self._lent: dict[int, Arena] = {}
        self._spare: list[Arena] = []

    @property
    def parameter_bytes(self) -> int:
        """Bytes of the parameters."""
        return self._values.nbytes

    @property
    def state_bytes(self) -> int:
        """Bytes of the optimizer's slots."""
        return sum(int(slot.nbytes) for state in self._state for slot in state.values())

    @property
    def staged_bytes(self) -> int:
        """Bytes of memory for gradients that wait for their step."""
        held = sum(gradient.source.owned_bytes for gradient in tuple(self._staged.values()))
        return held + sum(arena.nbytes for arena in (*self._lent.values(), *self._spare))

    def needs_room(self, slot: int, *, copied: bool = True) -> int:
        """Bytes that this slot's gradient would take beyond what is taken already.

        Args:
            slot: whose.
            copied: it comes from the caller's memory; else it stays in the memory that it is received into.
        """
        there = slot in self._lent or self._spare if copied else slot in self._staged
        return 0 if there else self.parameter_bytes

    @property
    def packed_offsets(self) -> Sequence[int]:
        """First byte of each partition where they lie one after the other, by position."""
        return self._values.offsets

    def values(self, position: int) -> Array:
        """The parameters of one partition, shared."""
        return self._values.array(self._piece(position, position + 1))

    def part(self, position: int) -> memoryview:
        """The bytes of one partition's parameters, shared."""
        return self.values(position).view(np.uint8).data

    def state(self, position: int) -> dict[str, Array]:
        """The optimizer's slots of one partition, shared."""
        return self._slots(self._piece(position, position + 1))

    def initialize(self, source: Source, present: Iterable[int]) -> None:
        """Sets values; the state begins anew, the versions stay."""
        for piece, _ in self._pieces(present, joins=source.joins):
            self._values.array(piece)[...] = source.array(piece)
        for state, piece in zip(self._state, self._whole_spans()):
            state.update(self.rule.init_state(self._values.array(piece)))

    def stage(self, slot: int, gradient: Gradient, *, kept: bool) -> bool:
        """Holds a gradient until its step is closed.

        Args:
            slot: whose.
            gradient: what came.
            kept: its memory stays as it is until then; else it is copied.

        Returns:
            False if the push is done, or a later one is here: this is a late repetition.
        """
        if self.dedupe and self.dedupe[0].seen(gradient.writer, gradient.sequence) is not None:
            return False
        held = self._staged.get(slot)
        if held is not None and held.writer == gradient.writer and held.sequence > gradient.sequence:
            return False
        if not kept:
            gradient = self._copied(slot, gradient)
        self._staged[slot] = gradient
        return True

    def _copied(self, slot: int, gradient: Gradient) -> Gradient:
        arena = self._lent.pop(slot, None) or (
            self._spare.pop() if self._spare else Arena.packed(self.partitions)
        )
        self._lent[slot] = arena
        for piece, _ in self._pieces(gradient.present, joins=gradient.source.joins):
            _copy(arena.array(piece), gradient.source.array(piece))
        return Gradient(gradient.writer, gradient.sequence, arena, gradient.present)

    def apply_round(self, slots: Sequence[int], pulls: Sequence[Pull] = ()) -> None:
        """Applies the mean of the staged gradients of these slots (summed in this order), and answers pulls.

        Everything else that is staged is dropped.
        """
        chosen = [self._staged[slot] for slot in slots]
        self._answer(pulls, self._update(chosen, self.everything, _sinks(pulls)))
        for slot, gradient in self._staged.items():
            self._record(gradient, self.everything, Outcome.APPLIED if slot in slots else Outcome.DROPPED)
        self._staged.clear()
        self._spare.extend(self._lent.values())
        self._lent.clear()

    def apply_push(self, gradient: Gradient, pulls: Sequence[Pull] = ()) -> None:
        """Applies a push to those of its partitions that have not seen it, and answers pulls."""
        new = self._unseen(gradient.present, gradient.writer, gradient.sequence)
        self._answer(pulls, self._update([gradient], new, _sinks(pulls)))
        self._record(gradient, new, Outcome.APPLIED)

    def forecast(self, pull: Pull, writer: int, sequence: int, present: Iterable[int]) -> None:
        """Says what a pull will get if it follows a push of which these partitions are still to be applied.

        Versions are those of now plus this push: other writers may raise them until a value is read. Who
        holds a newer value than it believes only gets it once more.
        """
        new = set(self._unseen(present, writer, sequence))
        pull.changed = [i for i, version in enumerate(self.versions) if i in new or pull.wants(i, version)]
        pull.versions = [self.versions[i] + (i in new) for i in pull.changed]

    def apply_part(self, gradient: Gradient, sink: Source | None = None) -> None:
        """Applies what is here of a push, and writes the values of these partitions."""
        new = self._unseen(gradient.present, gradient.writer, gradient.sequence)
        written = self._update([gradient], new, () if sink is None else (sink,))
        self._record(gradient, new, Outcome.APPLIED)
        if sink is not None:
            self.copy_out(gradient.present - written, sink)

    def copy_out(self, positions: Iterable[int], sink: Source) -> None:
        """Writes the values of these partitions."""
        for piece, _ in self._pieces(positions, joins=sink.joins):
            _copy(sink.array(piece), self._values.array(piece))

    def finish_push(self, writer: int, sequence: int, outcome: Outcome = Outcome.APPLIED) -> Outcome:
        """Records a push on the partitions that it had no gradients for, or (dropped) did not count on.

        Returns:
            What became of it; an earlier record stands.
        """
        known = [dedupe.seen(writer, sequence) for dedupe in self.dedupe]
        for dedupe, seen in zip(self.dedupe, known):
            if seen is None:
                dedupe.record(writer, sequence, outcome)
        self._unstage(lambda gradient: (gradient.writer, gradient.sequence) == (writer, sequence))
        return Outcome.APPLIED if Outcome.APPLIED in known else outcome

    def read(self, pull: Pull) -> None:
        """Answers a pull."""
        self._answer([pull], frozenset())

    def keep_writers(self, writers: Iterable[int]) -> None:
        """Forgets all other writers, and what they have staged: they count in no step to come."""
        kept = frozenset(writers)
        for dedupe in self.dedupe:
            dedupe.keep(kept)
        self._unstage(lambda gradient: gradient.writer not in kept)
        del self._spare[max(0, len(kept) - len(self._lent)) :]

    def _unstage(self, which: Callable[[Gradient], bool]) -> None:
        for slot in [slot for slot, gradient in self._staged.items() if which(gradient)]:
            del self._staged[slot]
            if slot in self._lent:
                self._spare.append(self._lent.pop(slot))

    def _record(self, gradient: Gradient, positions: Iterable[int], outcome: Outcome) -> None:
        for position in positions:
            self.dedupe[position].record(gradient.writer, gradient.sequence, outcome)

    def _unseen(self, positions: Iterable[int], writer: int, sequence: int) -> list[int]:
        return [p for p in positions if self.dedupe[p].seen(writer, sequence) is None]

    def _update(
        self, gradients: Sequence[Gradient], positions: Iterable[int], sinks: Sequence[Source]
    ) -> frozenset[int]:
        """Applies the gradients' mean; returns the partitions that had one, which are in the sinks now."""
        touched = frozenset().union(*(g.present for g in gradients)).intersection(positions)
        joins = all(source.joins for source in (*sinks, *(g.source for g in gradients)))
        with np.errstate(all="ignore"):  # an overflowing model is the trainer's business; its loss shows it
            for piece, present in self._pieces(
                touched, gradients, joins, _CACHED_PARTITIONS if len(sinks) > 1 else 0
            ):
                self._apply(piece, [gradients[i].source for i in present], len(gradients), sinks)
        return touched

    def _apply(self, piece: Piece, sources: Sequence[Source], divisor: int, sinks: Sequence[Source]) -> None:
        values = self._values.array(piece)
        apply_blocks(
            self.rule,
            values,
            [source.array(piece) for source in sources],
            self._slots(piece),
            self.versions[piece.start],
            sinks[0].array(piece) if sinks else None,
            divisor,
        )
        for sink in sinks[1:]:
            _copy(sink.array(piece), values)
        for position in range(piece.start, piece.stop):
            self.versions[position] += 1
        self.updates += piece.stop - piece.start

    def _answer(self, pulls: Sequence[Pull], written: frozenset[int]) -> None:
        for pull in pulls:
            changed = [i for i, version in enumerate(self.versions) if i in written or pull.wants(i, version)]
            pull.changed, pull.versions = changed, [self.versions[i] for i in changed]
            if pull.sink is not None:
                self.copy_out((i for i in changed if i not in written), pull.sink)

    def _pieces(
        self, positions: Iterable[int], gradients: Sequence[Gradient] = (), joins: bool = True, limit: int = 0
    ) -> Iterator[tuple[Piece, tuple[int, ...]]]:
        """Runs of neighbours with equal version and contributors (their indices are the second value)."""

        def key(position: int) -> tuple[int, int, tuple[int, ...]]:
            who = tuple(i for i, gradient in enumerate(gradients) if position in gradient.present)
            return self._span_of[position], self.versions[position], who

        run: list[int] = []
        run_key: tuple[int, int, tuple[int, ...]] = (-1, -1, ())
        for position in sorted(positions):
            new = key(position)
            full = not joins or (limit and len(run) >= limit)
            if run and (full or new != run_key or position != run[-1] + 1):
                yield self._piece(run[0], run[-1] + 1), run_key[2]
                run = []
            run.append(position)
            run_key = new
        if run:
            yield self._piece(run[0], run[-1] + 1), run_key[2]

    def _piece(self, start: int, stop: int) -> Piece:
        size = self._first_element[stop - 1] + self.partitions[stop - 1].size - self._first_element[start]
        return Piece(start, stop, self.partitions[start].dtype, size)

    def _slots(self, piece: Piece) -> dict[str, Array]:
        first = self._first_element[piece.start]
        return {
            name: slot[first : first + piece.size]
            for name, slot in self._state[self._span_of[piece.start]].items()
        }

    def _whole_spans(self) -> Iterator[Piece]:
        for _, group in itertools.groupby(
            range(len(self.partitions)), lambda position: self._span_of[position]
        ):
            positions = list(group)
            yield self._piece(positions[0], positions[-1] + 1)


def _sinks(pulls: Iterable[Pull]) -> list[Source]:
    return [pull.sink for pull in pulls if pull.sink is not None]


def _spans(partitions: Sequence[Partition]) -> tuple[list[int], list[int]]:
    """For each position: the number of its run of neighbours, and its first element in that run."""
    span_of: list[int] = []
    first: list[int] = []
    before: Partition | None = None
    for partition in partitions:
        if before is not None and partition.offset < before.stop:
            raise ArgumentError("partitions must come in the order of the arena, and not overlap")
        if before is not None and (before.dtype, before.stop) == (partition.dtype, partition.offset):
            span_of.append(span_of[-1])
            first.append(first[-1] + before.size)
        else:
            span_of.append(span_of[-1] + 1 if span_of else 0)
            first.append(0)
        before = partition
    return span_of, first


def _copy(target: Array, source: Array) -> None:
    """Copies, on the update threads where it pays."""
    step = max(1, _COPY_BYTES // target.itemsize)
    if target.size <= 2 * step:
        target[...] = source
        return

    def work(index: int) -> None:
        target[index * step : (index + 1) * step] = source[index * step : (index + 1) * step]

    run_blocks(work, -(-target.size // step))
