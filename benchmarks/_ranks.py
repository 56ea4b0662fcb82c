"""Sides of several processes: rank 0 speaks the line protocol of `_side`, and tells the others of each case.

What both sides of a comparison must do alike stands here too. Nothing of psframework is imported: the
peer's interpreter need not have it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.connection import Connection
from typing import Any

from benchmarks._side import READY, serve_side

MIB = 1 << 20
SIZES = (MIB, 16 * MIB, 64 * MIB, 256 * MIB)  # of arrays that are all-reduced, beside one of 4 KiB
OPERATION_BYTES, BARRIERS = 16 * MIB, 500  # of the other operations; barriers in a repetition
BATCH = 64
MODELS = {  # layers, and steps of a repetition
    "0.03M": ([64, 128, 128, 10], 1000),
    "0.67M": ([784, 512, 512, 10], 300),
    "24M": ([784, 4096, 4096, 1024, 10], 15),
}
_BUDGET = 384 * MIB  # bytes that a repetition moves


def human(nbytes: int) -> str:
    """4 KiB, 16 MiB."""
    return f"{nbytes // MIB} MiB" if nbytes >= MIB else f"{nbytes // 1024} KiB"


def iterations(nbytes: int, most: int = 300) -> int:
    """How often a repetition runs an operation on so many bytes; alike on every side."""
    return max(3, min(most, _BUDGET // max(nbytes, 1)))


@contextmanager
def ranks(target: Callable[..., object], size: int, *arguments: Any) -> Iterator[list[Connection]]:
    """Starts `target(rank, size, pipe, *arguments)` for all ranks but 0; ends them when the block is left."""
    context = get_context("spawn")
    pipes, processes = [], []
    for rank in range(1, size):
        ours, theirs = context.Pipe()
        process = context.Process(target=target, args=(rank, size, theirs, *arguments), daemon=True)
        process.start()
        theirs.close()
        pipes.append(ours)
        processes.append(process)
    try:
        yield pipes
    finally:
        for pipe in pipes:
            with contextlib.suppress(OSError):
                pipe.send("")
        for process in processes:
            process.join(10)
            process.kill()


def lead(pipes: Sequence[Connection], cases: Mapping[str, Callable[[], float]]) -> None:
    """Rank 0 of a side without an event loop."""

    def together(case: str) -> float:
        for pipe in pipes:
            pipe.send(case)
        return cases[case]()

    serve_side({case: lambda case=case: together(case) for case in cases})  # type: ignore[misc]


def follow(pipe: Connection, cases: Mapping[str, Callable[[], float]]) -> None:
    """Another rank of such a side."""
    while case := pipe.recv():
        cases[case]()


Cases = Mapping[str, Callable[[], Awaitable[float]]]


async def lead_async(pipes: Sequence[Connection], cases: Cases) -> None:
    """Rank 0 of a side with an event loop, which goes on between cases."""
    print(READY, flush=True)
    while case := (await asyncio.to_thread(sys.stdin.readline)).strip():
        for pipe in pipes:
            pipe.send(case)
        print(json.dumps(await cases[case]()), flush=True)


async def follow_async(pipe: Connection, cases: Cases) -> None:
    """Another rank of such a side."""
    while case := await asyncio.to_thread(pipe.recv):
        await cases[case]()
