"""Collectives of CuPy arrays by NCCL. What ranks are about to do they compare over the group's transport.

Tested with a communicator that is only memory, and not run on a GPU yet: `pytest -m gpu` has tests for one
rank on one. Several GPUs, and several machines, are unverified.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final, Protocol

import numpy as np

from psframework import backend
from psframework.backend import Array
from psframework.collective.descriptor import Descriptor, Operation
from psframework.collective.ops import ReduceOp
from psframework.collective.work import Flat, Transport, Work
from psframework.errors import ConfigurationError, DeadlineExceeded, PsfError
from psframework.rpc.functions.future import Future

KIND: Final = "cuda"
_POLL_SECONDS: Final = 20e-6

# NCCL's own numbers, of `ncclDataType_t` and `ncclRedOp_t`.
_UINT8: Final = 1
_TYPES: Final = {
    "int8": 0, "uint8": 1, "int32": 2, "uint32": 3, "int64": 4, "uint64": 5, "float32": 7, "float64": 8,
}  # fmt: skip
_OPS: Final = {
    ReduceOp.SUM: 0, ReduceOp.AVG: 0, ReduceOp.PRODUCT: 1, ReduceOp.MAX: 2, ReduceOp.MIN: 3,
}  # fmt: skip
_HALVES: Final = {"float16": "float32", "bfloat16": "float32"}  # added in float32, rounded once
_PAIRS: Final = {"complex64": "float32", "complex128": "float64"}  # added as their two parts
_ADDING: Final = (ReduceOp.SUM, ReduceOp.AVG)
_REDUCING: Final = (Operation.ALL_REDUCE, Operation.REDUCE, Operation.REDUCE_SCATTER)
_MOVING: Final = (Operation.BROADCAST, Operation.ALL_GATHER, Operation.GATHER, Operation.ALL_TO_ALL)


class Group(Protocol):
    """As much of a ProcessGroup as is needed to begin."""

    rank: int
    size: int

    def broadcast_object(self, value: object, src: int) -> Future[Any]: ...
    def refuse(self, why: str) -> Future[None]: ...


class Driver(Protocol):
    """`cupy.cuda.nccl`, as far as it is used here."""

    NcclCommunicator: Any

    def get_unique_id(self) -> tuple[int, ...]: ...
    def groupStart(self) -> None: ...
    def groupEnd(self) -> None: ...


def driver() -> Driver:
    """CuPy's NCCL; ConfigurationError if it has none."""
    cupy = backend.cupy()
    if cupy is None or not getattr(cupy.cuda.nccl, "available", True):
        raise ConfigurationError("NCCL needs a GPU, and CuPy with NCCL: pip install 'psframework[cuda12]'")
    return cupy.cuda.nccl  # type: ignore[no-any-return]


def carries(descriptor: Descriptor) -> bool:
    """Whether NCCL does this operation; all others go by way of the host."""
    if descriptor.operation in _MOVING:
        return True
    if descriptor.operation not in _REDUCING or descriptor.op not in _OPS:
        return False
    if descriptor.dtype in _PAIRS:
        return descriptor.op in _ADDING
    return descriptor.dtype in _TYPES or descriptor.dtype in _HALVES


class Nccl:
    """Transport of arrays on one GPU a rank; the flats of its works are on that GPU.

    Args:
        nccl: the driver.
        communicator: of all ranks.
        host: the group's transport, by which ranks compare what they are about to do.
        stream: of its own, on the GPU.
        rank, size: of the group.
        ready: waits for all that is queued in the current stream.

    Attributes:
        ready: as given.
    """

    name = "nccl"

    def __init__(
        self,
        nccl: Driver,
        communicator: Any,
        host: Transport,
        stream: Any,
        rank: int,
        size: int,
        ready: Callable[[], object],
    ) -> None:
        self._nccl, self._comm, self._host, self._stream = nccl, communicator, host, stream
        self._rank, self._size, self.ready = rank, size, ready
        self._thread = ThreadPoolExecutor(1, "psf-nccl")
        self._error: BaseException | None = None

    @property
    def lives_on(self) -> bool:
        """As the group's transport."""
        return self._host.lives_on

    def takes(self, descriptor: Descriptor, array: Array) -> bool:
        """Whether it is its business: an array on a GPU, and an operation that NCCL has."""
        return type(array) is not np.ndarray and backend.device_of(array).kind == KIND and carries(descriptor)

    def start(self, work: Work) -> None:
        """As `Transport.start`."""
        said = work.descriptor
        told = Descriptor(
            said.sequence, Operation.BARRIER, f"cuda {said.operation.name.lower()} {said.dtype}", said.shape,
            said.op, said.root,
        )  # fmt: skip
        self._host.start(Work(told, None, None, work.deadline, partial(self._compared, work)))

    def abort(self, error: BaseException) -> None:
        """As `Transport.abort`."""
        self._error = self._error or error
        self._host.abort(error)

    async def close(self) -> None:
        """Gives the communicator back, not the group's transport."""
        self._error = self._error or PsfError("the group is closed")
        self._thread.submit(self._comm.abort)
        self._thread.shutdown(wait=False)

    def _compared(self, work: Work, _: Work, error: BaseException | None) -> None:
        if error is not None:
            work.done(work, error)
        else:
            self._thread.submit(self._run, work)

    def _run(self, work: Work) -> None:
        error: BaseException | None = None
        try:
            array = work.send if work.send is not None else work.receive
            assert array is not None
            with backend.device_of(array), self._stream:
                if work.descriptor.operation in _REDUCING:
                    self._reduce(work)
                else:
                    self._move(work)
                self._wait(work)
        except BaseException as failed:
            self._comm.abort()
            error = failed
        work.done(work, error)

    def _wait(self, work: Work) -> None:
        """Until the GPU is done; NCCL itself would wait for ever for a rank that is gone."""
        while not self._stream.done:
            if self._error is not None:
                raise self._error
            if work.deadline.expired:
                raise DeadlineExceeded(f"{work.descriptor} did not end on the GPU in time")
            time.sleep(_POLL_SECONDS)

    def _reduce(self, work: Work) -> None:
        said, send = work.descriptor, work.send
        assert said.op is not None and send is not None
        source, dtype = _as_numbers(send, said.dtype)
        target = None if work.receive is None else _as_numbers(work.receive, said.dtype, empty=True)[0]
        kind, op, stream = _TYPES[dtype], _OPS[said.op], _pointer(self._stream)
        into = 0 if target is None else _address(target)
        if said.operation is Operation.ALL_REDUCE:
            self._comm.allReduce(_address(source), into, source.size, kind, op, stream)
        elif said.operation is Operation.REDUCE:
            self._comm.reduce(_address(source), into, source.size, kind, op, said.root, stream)
        else:
            self._comm.reduceScatter(_address(source), into, source.size // self._size, kind, op, stream)
        if target is None or work.receive is None:
            return
        if said.op is ReduceOp.AVG:
            target /= self._size
        if said.dtype in _HALVES:
            work.receive[...] = target.astype(work.receive.dtype)

    def _move(self, work: Work) -> None:
        operation, root, stream = work.descriptor.operation, work.descriptor.root, _pointer(self._stream)
        send, receive = work.send, work.receive
        if operation is Operation.BROADCAST:
            array = send if send is not None else receive
            assert array is not None
            self._comm.bcast(_address(array), array.nbytes, _UINT8, root, stream)
        elif operation is Operation.ALL_GATHER:
            assert send is not None and receive is not None
            self._comm.allGather(_address(send), _address(receive), send.nbytes, _UINT8, stream)
        elif operation is Operation.GATHER:
            assert send is not None
            self._trade({root: send}, {} if receive is None else _cut(receive, self._size), stream)
        else:
            assert send is not None and receive is not None
            self._trade(_cut(send, self._size), _cut(receive, self._size), stream)

    def _trade(self, gives: dict[int, Flat], takes: dict[int, Flat], stream: int) -> None:
        """Sends and receives at once, which can't deadlock."""
        own = takes.pop(self._rank, None)
        if own is not None:
            own[...] = gives.pop(self._rank)
        self._nccl.groupStart()
        try:
            for rank, array in gives.items():
                self._comm.send(_address(array), array.nbytes, _UINT8, rank, stream)
            for rank, array in takes.items():
                self._comm.recv(_address(array), array.nbytes, _UINT8, rank, stream)
        finally:
            self._nccl.groupEnd()


def _cut(flat: Flat, size: int) -> dict[int, Flat]:
    part = flat.size // size
    return {rank: flat[rank * part : (rank + 1) * part] for rank in range(size)}


def _as_numbers(flat: Flat, dtype: str, *, empty: bool = False) -> tuple[Flat, str]:
    """The array as numbers that NCCL adds, and their dtype; a view where it can be one."""
    if dtype in _PAIRS:
        return flat.view(_PAIRS[dtype]), _PAIRS[dtype]
    if dtype in _HALVES:
        wide = _HALVES[dtype]
        return (backend.xp(flat).empty(flat.shape, wide) if empty else flat.astype(wide)), wide
    return flat, dtype


def _address(array: Array) -> int:
    return int(array.data.ptr)  # type: ignore[attr-defined]


def _pointer(stream: Any) -> int:
    return int(stream.raw.ptr)


async def connect(group: Group, host: Transport) -> Nccl:
    """A communicator of all ranks, each on its current GPU; all call it alike.

    Raises:
        ConfigurationError: no GPU, or CuPy without NCCL; here or, as CollectiveMismatch, elsewhere.
    """
    try:
        nccl, device = driver(), backend.device(KIND)
    except PsfError as error:
        group.refuse(f"no NCCL: {error}").cancel()
        raise
    said = list(nccl.get_unique_id()) if group.rank == 0 else None
    unique = tuple(await group.broadcast_object(said, 0))

    def begin() -> Any:
        with device:
            return nccl.NcclCommunicator(group.size, unique, group.rank)

    communicator = await asyncio.to_thread(begin)
    current = backend.cupy().cuda.get_current_stream  # type: ignore[union-attr]
    stream = backend.stream(device)
    return Nccl(nccl, communicator, host, stream, group.rank, group.size, lambda: current().synchronize())
