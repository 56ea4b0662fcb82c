"""Every operation x dtype x reduction x layout: what each rank passes, and what NumPy says comes of it."""

from __future__ import annotations

import functools
import hashlib
import itertools
import zlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

import psframework as psf
from psframework.collective.ops import ReduceOp

INTEGERS = ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
NARROW = ("float16", "bfloat16")
REALS = (*NARROW, "float32", "float64")
COMPLEX = ("complex64", "complex128")
DTYPES = (*INTEGERS, *REALS, *COMPLEX)

REDUCING = ("all_reduce", "reduce", "reduce_scatter")
PARTED = ("scatter", "reduce_scatter", "all_to_all")
OPERATIONS = (*REDUCING, "broadcast", "all_gather", "gather", "scatter", "all_to_all", "send_recv")
ALIKE = ("all_reduce", "broadcast", "all_gather")
"""Their results are the same on all ranks."""

LAYOUTS = ("contiguous", "strided", "reversed", "fortran", "read-only", "big-endian", "mixed", "0-d", "empty",
           "large", "large strided")  # fmt: skip
_MIXED = ("contiguous", "strided", "fortran", "big-endian", "reversed")
VALUES = ("whole", "rough")
UFUNCS = {
    ReduceOp.SUM: np.add, ReduceOp.AVG: np.add, ReduceOp.PRODUCT: np.multiply, ReduceOp.MIN: np.minimum,
    ReduceOp.MAX: np.maximum, ReduceOp.BAND: np.bitwise_and, ReduceOp.BOR: np.bitwise_or,
    ReduceOp.BXOR: np.bitwise_xor,
}  # fmt: skip


class Case(NamedTuple):
    """One operation.

    Attributes:
        operation: name of the method, or "send_recv".
        dtype: by name.
        op: name of the reduction; "" for operations without one.
        layout: of the arrays.
        values: "whole" ones, whose sums are exact in any order, or "rough" ones, with NaN and infinity.
    """

    operation: str
    dtype: str
    op: str
    layout: str
    values: str

    @property
    def is_possible(self) -> bool:
        if (self.operation in REDUCING) != bool(self.op):
            return False
        if self.dtype in INTEGERS and (self.op == "AVG" or self.values == "rough"):
            return False
        if self.dtype not in INTEGERS and self.op in ("BAND", "BOR", "BXOR"):
            return False
        if self.dtype in COMPLEX and self.op in ("MIN", "MAX"):
            return False
        if self.layout == "0-d" and self.operation in PARTED:
            return False
        return not (self.layout == "read-only" and self.operation == "all_reduce")


def everything() -> Iterator[Case]:
    """The full product."""
    ops = ("", *(op.name for op in ReduceOp))
    for each in itertools.product(OPERATIONS, DTYPES, ops, LAYOUTS, VALUES):
        if (case := Case(*each)).is_possible:
            yield case


@functools.cache
def pairwise() -> tuple[Case, ...]:
    """Some cases, so that every possible pair of two properties is in one of them. Always the same."""
    every = sorted(everything(), key=lambda case: zlib.crc32(repr(case).encode()))
    missing = {pair for case in every for pair in pairs(case)}
    chosen: list[Case] = []
    fresh = len(Case._fields) * (len(Case._fields) - 1) // 2
    while missing:
        for case in every:
            if len(missing & pairs(case)) >= fresh:
                chosen.append(case)
                missing -= pairs(case)
        fresh -= 1
    return tuple(chosen)


@functools.cache
def pairs(case: Case) -> frozenset[tuple[int, str, int, str]]:
    """Which properties occur together in a case."""
    return frozenset((i, case[i], j, case[j]) for i, j in itertools.combinations(range(len(case)), 2))


def dtype_of(name: str) -> np.dtype[Any]:
    return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)


def shape_of(case: Case, size: int) -> tuple[int, ...]:
    if case.layout == "0-d":
        return ()
    if case.layout == "empty":
        return (0, 3)
    return (20_160,) if case.layout.startswith("large") else (2 * size, 3)


def given(case: Case, rank: int, size: int) -> np.ndarray:
    """What a rank passes, contiguous."""
    rng = np.random.default_rng([rank, zlib.crc32(repr(case).encode())])
    shape = shape_of(case, size)
    if case.op == "PRODUCT":
        whole = rng.choice([1, 2] if case.dtype[0] in "ub" else [1, -1, 2], shape)
    elif case.op in ("BAND", "BOR", "BXOR"):
        whole = rng.integers(0, 100, shape)
    else:
        whole = rng.integers(0 if case.dtype[0] == "u" else -4, 9, shape)
    if case.values == "whole":
        array = whole.astype(dtype_of(case.dtype))
        return np.asarray(array * (1 - 2j)) if case.dtype in COMPLEX and case.op != "PRODUCT" else array
    array = np.asarray(rng.standard_normal(shape) * 2)
    if case.dtype in COMPLEX:
        return np.asarray(array + 1j * rng.standard_normal(shape)).astype(case.dtype)
    if array.size > 3:
        array.flat[0], array.flat[1] = (np.nan, np.inf) if rank == 0 else (1.0, -np.inf)
        array.flat[2], array.flat[3] = -0.0, 0.0 if rank else -0.0
    return array.astype(dtype_of(case.dtype))


def laid_out(values: np.ndarray, layout: str, rank: int, *, written: bool) -> np.ndarray:
    """The same values in memory of that layout."""
    if layout == "mixed":
        layout = _MIXED[rank % len(_MIXED)]
    if layout in ("strided", "large strided"):
        parent = np.full((*values.shape, 2), 1, values.dtype)
        parent[..., 0] = values
        return parent[..., 0]
    if layout == "reversed":
        return values[::-1].copy()[::-1]
    if layout == "fortran":
        return np.asfortranarray(values)
    if layout == "big-endian" and values.dtype != ml_dtypes.bfloat16:
        return values.astype(values.dtype.newbyteorder(">"))
    array = values.copy()
    array.flags.writeable = written or layout != "read-only"
    return array


def combined(op: ReduceOp, parts: list[np.ndarray], size: int) -> np.ndarray:
    """In rank order, in the arrays' dtype; 16-bit ones in float32, rounded once."""
    dtype = parts[0].dtype
    wide = np.dtype("float32") if dtype in (np.dtype("float16"), np.dtype(ml_dtypes.bfloat16)) else dtype
    with np.errstate(all="ignore"):
        total = np.asarray(functools.reduce(UFUNCS[op], [part.astype(wide) for part in parts]))
        if op is ReduceOp.AVG:
            total = (total / size).astype(wide)
        return np.asarray(total.astype(dtype))


def expected(case: Case, rank: int, size: int, root: int) -> np.ndarray | None:
    """The result of a rank."""
    own = slice(rank * shape_of(case, size)[0] // size, (rank + 1) * shape_of(case, size)[0] // size) \
        if case.operation in PARTED else slice(None)  # fmt: skip
    alone = case.operation in ("gather", "reduce") and rank != root
    if case.operation == "send_recv":
        return given(case, (rank - 1) % size, size)
    if case.operation in ("broadcast", "scatter"):
        return given(case, root, size)[own] if case.operation == "scatter" else given(case, root, size)
    if alone:
        return given(case, rank, size) if case.operation == "reduce" else None
    parts = [given(case, each, size) for each in range(size)]
    if case.operation in ("gather", "all_gather"):
        return np.stack(parts)
    if case.operation == "all_to_all":
        return np.concatenate([part[own] for part in parts])
    total = combined(ReduceOp[case.op], parts, size)
    return total[own] if case.operation == "reduce_scatter" else total


async def do(group: psf.ProcessGroup, case: Case, array: np.ndarray, root: int) -> np.ndarray | None:
    """Calls it; what is in place answers the array."""
    rank, size = group.rank, group.size
    if case.operation == "send_recv":
        sent = group.send(array, (rank + 1) % size)
        got: np.ndarray = await group.recv((rank - 1) % size)
        await sent
        return got
    method = getattr(group, case.operation)
    if case.op:
        op = ReduceOp[case.op]
        return await (method(array, root, op) if case.operation == "reduce" else method(array, op))
    if case.operation == "scatter":
        return await method(array if rank == root else None, root)
    return await (method(array, root) if case.operation in ("broadcast", "gather") else method(array))


async def check(group: psf.ProcessGroup, case: Case, root: int, *, exact: bool) -> bytes:
    """Does it and compares; the digest of the result's bits."""
    rank, size = group.rank, group.size
    values = given(case, rank, size)
    is_written = case.operation in ("all_reduce", "broadcast", "reduce") and (
        case.operation == "all_reduce" or (case.operation == "reduce") == (rank == root)
    )
    array = laid_out(values, case.layout, rank, written=is_written)
    got, wanted = await do(group, case, array, root), expected(case, rank, size, root)
    if wanted is None:
        assert got is None
        return b""
    assert got is not None and got.shape == wanted.shape, (got, wanted)
    assert (got is array) == (case.operation in ("all_reduce", "broadcast", "reduce"))
    assert got.dtype == wanted.dtype or (got is array and got.dtype.newbyteorder("=") == wanted.dtype)
    if case.dtype in COMPLEX and case.op == "PRODUCT":
        exact = False  # NumPy's own differs in the last bit with the length of the array
    if exact or not case.op:
        assert np.ascontiguousarray(got, wanted.dtype).tobytes() == wanted.tobytes(), (got, wanted)
    elif case.values == "whole":
        wide = "float32" if case.dtype == "bfloat16" else wanted.dtype  # NumPy knows no NaN of bfloat16
        np.testing.assert_array_equal(got.astype(wide), wanted.astype(wide))
    else:
        error = 0.05 if case.dtype in NARROW else 1e-4 if case.dtype in ("float32", "complex64") else 1e-12
        np.testing.assert_allclose(
            got.astype(np.complex128), wanted.astype(np.complex128), rtol=error, atol=error
        )
    if not is_written:
        assert array.tobytes() == laid_out(values, case.layout, rank, written=False).tobytes()
    if array.base is not None and "strided" in case.layout:
        assert (array.base[..., 1] == 1).all()
    return hashlib.blake2b(np.ascontiguousarray(got, wanted.dtype).tobytes(), digest_size=8).digest()


_groups: dict[str, psf.ProcessGroup] = {}


@psf.remote
async def join(name: str, size: int, algorithm: str | None) -> str:
    cluster = psf.current_cluster()
    group = _groups[name] = await cluster.process_group(name, size, algorithm=algorithm, timeout=30)
    return group.transport


@psf.remote
async def run(name: str, cases: list[tuple[str, ...]], exact: bool) -> tuple[list[bytes], list[str]]:
    """Does all; the digests of the results, and what is wrong with which."""
    group = _groups[name]
    digests, wrong = [], []
    for number, each in enumerate(cases):
        case, root = Case(*each), number % group.size
        try:
            digests.append(await check(group, case, root, exact=exact))
        except psf.PsfError:
            raise
        except Exception as error:  # the other ranks go on
            wrong.append(f"{case} with root {root} on rank {group.rank}: {type(error).__name__} {error}")
            digests.append(b"")
    return digests, wrong


@psf.remote
async def leave(name: str) -> None:
    await _groups.pop(name).close()


MISTAKES = ("op", "shape", "dtype", "order", "argument", "object")


@psf.remote
async def mistake(name: str, what: str, wrong: int) -> tuple[str, str, float]:
    """One rank does another thing than the others: what each gets, and after how many seconds."""
    import time

    group = _groups[name]
    is_wrong = group.rank == wrong
    start = time.perf_counter()
    try:
        if what == "op":
            await group.all_reduce(np.ones(3), ReduceOp.MAX if is_wrong else ReduceOp.SUM)
        elif what == "shape":
            await group.all_reduce(np.ones(()) if is_wrong else np.ones((3, 4)))
        elif what == "dtype":
            await group.all_reduce(np.ones(3, np.float16 if is_wrong else np.float32))
        elif what == "order":
            await (group.barrier() if is_wrong else group.all_gather(np.ones(3)))
        elif what == "argument":
            await group.all_reduce(np.ones(3, np.int32 if is_wrong else np.float32), ReduceOp.AVG)
        else:
            await group.broadcast_object(object() if is_wrong else 1, wrong)
    except Exception as error:
        return type(error).__name__, str(error), time.perf_counter() - start
    return "", "", 0.0


@psf.remote
async def timed(name: str, nbytes: int, count: int) -> list[float]:
    """Seconds of each of so many all-reduces."""
    import time

    group = _groups[name]
    array = np.ones(nbytes // 4, np.float32)
    spans = []
    for _ in range(count):
        start = time.perf_counter()
        await group.all_reduce(array)
        spans.append(time.perf_counter() - start)
    return spans
