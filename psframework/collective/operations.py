"""The collectives of a group: what each takes, gives, and says of itself to the other ranks."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

import numpy as np
import numpy.typing as npt

from psframework import backend
from psframework.backend import Array
from psframework.collective import objects
from psframework.collective.arrays import lend, lend_to_write
from psframework.collective.calls import Calls
from psframework.collective.descriptor import Descriptor, Operation
from psframework.collective.ops import ReduceOp, check_op
from psframework.errors import ArgumentError
from psframework.rpc.deadline import Deadline
from psframework.rpc.functions.future import Future

P = ParamSpec("P")
R = TypeVar("R")
A = TypeVar("A")
C = TypeVar("C", bound="Collectives")


def counted(method: Callable[Concatenate[C, P], R]) -> Callable[Concatenate[C, P], R]:
    """A call that can't be right is an operation too: the other ranks, which did call, hear why."""

    @functools.wraps(method)
    def call(self: C, *args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return method(self, *args, **kwargs)
        except Exception as error:
            self._calls.decline(f"{method.__name__.lstrip('_')}: {type(error).__name__}: {error}")
            raise

    return cast(Callable[Concatenate[C, P], R], call)


class Collectives:
    """The operations of `psf.ProcessGroup` over arrays and objects; what is common to all is said there.

    Args:
        rank: this member's.
        size: of the group.
        calls: makes operations of arrays.
    """

    def __init__(self, rank: int, size: int, calls: Calls) -> None:
        self.rank, self.size = rank, size
        self._calls = calls

    @counted
    def all_reduce(self, a: A, op: ReduceOp = ReduceOp.SUM, timeout: float | None = None) -> Future[A]:
        """Combines the arrays of all ranks, in place: afterwards all have the same, to the bit.

        Args:
            a: array of the same shape and dtype on all ranks.
            op: what combines them; see ReduceOp for the dtypes it takes.
            timeout: see the class.

        Returns:
            `a`.

        Raises:
            ArgumentError: no array, a read-only one, or a dtype that `op` does not take.
        """
        lent = lend_to_write(a)
        check_op(op, lent.array.dtype)
        return self._calls.exchange(
            Descriptor(0, Operation.ALL_REDUCE, lent.dtype, lent.shape, op), lent, a, timeout
        )

    @counted
    def broadcast(self, a: A, src: int, timeout: float | None = None) -> Future[A]:
        """Copies the array of rank `src` into those of all others, in place.

        Args:
            a: array of the same shape and dtype on all ranks; on `src` it may be read-only.
            src: the source's rank.

        Returns:
            `a`.

        Raises:
            ArgumentError: no array, a read-only one, or no such rank.
        """
        self._check_rank("src", src)
        is_root = src == self.rank
        lent = lend(a) if is_root else lend_to_write(a)
        descriptor = Descriptor(0, Operation.BROADCAST, lent.dtype, lent.shape, None, src)
        return (self._calls.give if is_root else self._calls.take)(descriptor, lent, a, timeout)

    @counted
    def reduce(self, a: A, dst: int, op: ReduceOp = ReduceOp.SUM, timeout: float | None = None) -> Future[A]:
        """Combines the arrays of all ranks into that of rank `dst`, in place; the others' stay as they are.

        Args:
            a: array of the same shape and dtype on all ranks; it may be read-only but on `dst`.
            dst: the destination's rank.
            op: what combines them.

        Returns:
            `a`.

        Raises:
            ArgumentError: as `all_reduce`, or no such rank.
        """
        self._check_rank("dst", dst)
        is_root = dst == self.rank
        lent = lend_to_write(a) if is_root else lend(a)
        check_op(op, lent.array.dtype)
        descriptor = Descriptor(0, Operation.REDUCE, lent.dtype, lent.shape, op, dst)
        return (self._calls.exchange if is_root else self._calls.give)(descriptor, lent, a, timeout)

    @counted
    def all_gather(self, a: object, timeout: float | None = None) -> Future[Array]:
        """The arrays of all ranks, stacked: shape (size, *a.shape), the same on all ranks.

        Args:
            a: array of the same shape and dtype on all ranks; only read.
        """
        lent = lend(a)
        descriptor = Descriptor(0, Operation.ALL_GATHER, lent.dtype, lent.shape)
        return self._calls.make(descriptor, lent, (self.size, *lent.shape), timeout)

    @counted
    def gather(self, a: object, dst: int, timeout: float | None = None) -> Future[Array | None]:
        """The arrays of all ranks on rank `dst`, stacked: shape (size, *a.shape); None on the others.

        Args:
            a: array of the same shape and dtype on all ranks; only read.
            dst: the destination's rank.
        """
        self._check_rank("dst", dst)
        lent = lend(a)
        descriptor = Descriptor(0, Operation.GATHER, lent.dtype, lent.shape, None, dst)
        if dst == self.rank:
            return self._calls.make(descriptor, lent, (self.size, *lent.shape), timeout)
        return self._calls.give(descriptor, lent, None, timeout)

    @counted
    def scatter(self, a: object, src: int, timeout: float | None = None) -> Future[Array]:
        """Each rank's part of the array of rank `src`: rows [rank * k, (rank + 1) * k) of axis 0.

        Args:
            a: on `src` an array with size * k rows, only read; what the others pass, such as None, is not
                looked at.
            src: the source's rank.

        Returns:
            A new array of shape (k, *a.shape[1:]).

        Raises:
            ArgumentError: no array on `src`, or its rows can't be divided by the size of the group.
        """
        self._check_rank("src", src)
        if src != self.rank:
            descriptor = Descriptor(0, Operation.SCATTER, root=src, open=True)
            return self._calls.receive(descriptor, lambda root: self._part(root.shape), timeout)
        lent = lend(a)
        descriptor = Descriptor(0, Operation.SCATTER, lent.dtype, lent.shape, None, src)
        return self._calls.make(descriptor, lent, self._part(lent.shape), timeout)

    @counted
    def reduce_scatter(
        self, a: object, op: ReduceOp = ReduceOp.SUM, timeout: float | None = None
    ) -> Future[Array]:
        """Combines the arrays of all ranks; each gets its part: rows [rank * k, (rank + 1) * k) of axis 0.

        Args:
            a: array of the same shape, with size * k rows, and dtype on all ranks; only read.
            op: what combines them.

        Returns:
            A new array of shape (k, *a.shape[1:]).

        Raises:
            ArgumentError: as `all_reduce`, or the rows can't be divided by the size of the group.
        """
        lent = lend(a)
        check_op(op, lent.array.dtype)
        descriptor = Descriptor(0, Operation.REDUCE_SCATTER, lent.dtype, lent.shape, op)
        return self._calls.make(descriptor, lent, self._part(lent.shape), timeout)

    @counted
    def all_to_all(self, a: object, timeout: float | None = None) -> Future[Array]:
        """Rank r gets part r of every rank's array, in the order of ranks; parts are of k rows of axis 0.

        Args:
            a: array of the same shape, with size * k rows, and dtype on all ranks; only read.

        Returns:
            A new array of the same shape.

        Raises:
            ArgumentError: no array, or its rows can't be divided by the size of the group.
        """
        lent = lend(a)
        self._part(lent.shape)
        descriptor = Descriptor(0, Operation.ALL_TO_ALL, lent.dtype, lent.shape)
        return self._calls.make(descriptor, lent, lent.shape, timeout)

    @counted
    def barrier(self, timeout: float | None = None) -> Future[None]:
        """Done when all ranks have called it."""
        return self._calls.bare(Descriptor(0, Operation.BARRIER), timeout)

    @counted
    def broadcast_object(self, value: object, src: int, timeout: float | None = None) -> Future[Any]:
        """A value of rank `src` on all ranks.

        Args:
            value: on `src` what a remote call could take as an argument, but RRefs; not looked at elsewhere.
            src: the source's rank.

        Raises:
            TypeError: on `src`, if the value can't travel; says which part of it.
        """
        self._check_rank("src", src)
        note = f"broadcast_object(root {src})"
        if src != self.rank:
            descriptor = Descriptor(0, Operation.BROADCAST, root=src, open=True, note=note)
            return self._calls.receive(descriptor, lambda root: root.shape, timeout, objects.unpack)
        lent = lend(objects.pack(value))
        descriptor = Descriptor(0, Operation.BROADCAST, lent.dtype, lent.shape, None, src, note=note)
        return self._calls.give(descriptor, lent, value, timeout)

    @counted
    def gather_object(
        self, value: object, dst: int, timeout: float | None = None
    ) -> Future[list[Any] | None]:
        """The values of all ranks on rank `dst`, in the order of ranks; None on the others.

        Args:
            value: what a remote call could take as an argument, but RRefs; all ranks should have values of
                about the same size, since shorter ones are padded. Two operations.
            dst: the destination's rank.

        Raises:
            TypeError: the value can't travel.
        """
        self._check_rank("dst", dst)
        return self._calls.gather_bytes(
            objects.pack(value),
            dst,
            (self.rank, self.size),
            timeout,
            functools.partial(objects.unpack, views=False),
        )

    @counted
    def _empty(
        self, shape: int | Sequence[int], dtype: npt.DTypeLike
    ) -> tuple[tuple[int, ...], str, Future[None]]:
        """Shape and dtype of an array that all ranks are about to make, which they compare: the future."""
        axes = shape if isinstance(shape, Sequence) else (shape,)
        shape, name = tuple(_whole("shape", axis) for axis in axes), backend.dtype_name(dtype)
        if any(axis < 0 for axis in shape):
            raise ArgumentError(f"no array has the shape {shape}")
        note = f"empty({name} of shape {shape})"
        return shape, name, self._calls.bare(Descriptor(0, Operation.BARRIER, name, shape, note=note), None)

    @counted
    def _split(self, color: int | None, key: int, timeout: float | None) -> tuple[int | None, int, Deadline]:
        """Checks the arguments of `split`, which begins with an operation of all ranks."""
        color = None if color is None else _whole("color", color)
        return color, _whole("key", key), self._calls.deadline(timeout)

    def _check_rank(self, name: str, rank: int) -> None:
        if not isinstance(rank, int | np.integer) or not 0 <= rank < self.size:
            raise ArgumentError(f"{name}={rank!r}: this group has ranks 0 to {self.size - 1}")

    def _part(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of one rank's part of an array."""
        if not shape or shape[0] % self.size:
            raise ArgumentError(
                f"an array of shape {shape} can't be cut along axis 0 into {self.size} equal parts"
            )
        return (shape[0] // self.size, *shape[1:])


def _whole(name: str, value: object) -> int:
    """An integer that fits into 64 bits."""
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise ArgumentError(f"{name}={value!r}: not an integer") from None
    if not -(1 << 63) <= number < 1 << 63:
        raise ArgumentError(f"{name}={value}: too large")
    return number
