"""Between descriptors of operations and the messages of the allreduce service. No I/O."""

from __future__ import annotations

from typing import Final

import numpy as np

from psframework import backend
from psframework.collective.descriptor import ANY, Descriptor, Operation
from psframework.collective.ops import ReduceOp, check_op
from psframework.collective.work import Flat
from psframework.errors import ArgumentError, WireError
from psframework.proto.v1 import allreduce_pb2 as pb

SERVICE: Final = "psframework.proto.v1.AllreduceService"
ROLE: Final = "allreduce"

_ROOTED: Final = {Operation.BROADCAST, Operation.REDUCE, Operation.GATHER, Operation.SCATTER}
_REDUCING: Final = {Operation.ALL_REDUCE, Operation.REDUCE, Operation.REDUCE_SCATTER}
_CUT: Final = {Operation.SCATTER, Operation.REDUCE_SCATTER, Operation.ALL_TO_ALL}
_FROM_ROOT: Final = {Operation.BROADCAST, Operation.SCATTER}
_EMPTY: Final = {Operation.BARRIER, Operation.REFUSE}
MOST_AXES: Final = 64


def path(method: str) -> str:
    """The path of a method of the service."""
    return f"/{SERVICE}/{method}"


def to_request(descriptor: Descriptor, seat: pb.Seat) -> pb.RunRequest:
    """The request that asks for an operation."""
    return pb.RunRequest(
        seat=seat,
        sequence=descriptor.sequence,
        operation=pb.CollectiveOperation.ValueType(descriptor.operation),
        reduction=pb.Reduction.ValueType(descriptor.op or 0),
        root=None if descriptor.root == ANY else descriptor.root,
        dtype=descriptor.dtype,
        shape=descriptor.shape,
        open=descriptor.open,
        note=descriptor.note,
    )


def to_descriptor(request: pb.RunRequest, size: int) -> Descriptor:
    """What a rank of a group of `size` asks for.

    Raises:
        ArgumentError: it can't be.
    """
    try:
        operation = Operation(request.operation)
        op = ReduceOp(request.reduction) if request.reduction else None
    except ValueError as error:
        raise ArgumentError(f"no operation of this service: {error}") from None
    root = request.root if request.HasField("root") else ANY
    if operation in (Operation.SEND, Operation.RECV):
        raise ArgumentError(f"{operation.name.lower()} is no operation of all ranks")
    if operation in _ROOTED and not 0 <= root < size:
        raise ArgumentError(f"{operation.name.lower()} needs a root from 0 to {size - 1}, not {root}")
    if len(request.shape) > MOST_AXES:
        raise ArgumentError(f"an array of {len(request.shape)} axes; there may be {MOST_AXES}")
    opened = request.open and operation in _FROM_ROOT and request.seat.rank != root
    empty = opened or operation in _EMPTY
    descriptor = Descriptor(
        request.sequence,
        operation,
        "" if empty else request.dtype,
        () if empty else tuple(request.shape),
        op if operation in _REDUCING else None,
        root if operation in _ROOTED else ANY,
        opened,
        request.note,
    )
    if not empty:
        _check_array(descriptor, size)
    return descriptor


def _check_array(descriptor: Descriptor, size: int) -> None:
    dtype, operation = backend.dtype_from_name(descriptor.dtype), descriptor.operation
    if operation in _REDUCING:
        if descriptor.op is None:
            raise ArgumentError(f"{operation.name.lower()} needs a reduction")
        check_op(descriptor.op, dtype)
    if operation in _CUT and (not descriptor.shape or descriptor.shape[0] % size):
        raise ArgumentError(
            f"{operation.name.lower()} of {size} ranks cuts axis 0; {descriptor.shape} can't be cut so"
        )


def gives(descriptor: Descriptor, rank: int) -> bool:
    """Whether a rank gives an array."""
    if descriptor.operation in _FROM_ROOT:
        return rank == descriptor.root
    return descriptor.operation not in _EMPTY


def nbytes(descriptor: Descriptor) -> int:
    """Bytes of the array that a rank describes; 0 if it describes none."""
    if not descriptor.dtype:
        return 0
    return backend.dtype_from_name(descriptor.dtype).itemsize * elements(descriptor)


def elements(descriptor: Descriptor) -> int:
    """Number of elements of the array that a rank describes."""
    count = 1
    for length in descriptor.shape:
        count *= length
    return count


def to_array(descriptor: Descriptor, rank: int, data: memoryview) -> Flat | None:
    """What a rank gives, over the memory of `data`.

    Raises:
        WireError: another number of bytes.
    """
    wanted = nbytes(descriptor) if gives(descriptor, rank) else 0
    if len(data) != wanted:
        raise WireError(f"{descriptor} of rank {rank} takes {wanted} bytes of data, {len(data)} came")
    if not gives(descriptor, rank):
        return None
    return np.frombuffer(data, backend.dtype_from_name(descriptor.dtype))
