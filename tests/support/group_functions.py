"""Process groups of workers: functions that tests call in their processes."""

import asyncio
import gc
import time
from pathlib import Path
from typing import Any

import numpy as np

import psframework as psf
from psframework.collective.seat import Seat
from psframework.wire.shm import Segment

_groups: dict[str, psf.ProcessGroup] = {}


def facts(group: psf.ProcessGroup) -> dict[str, Any]:
    return {
        "rank": group.rank,
        "size": group.size,
        "members": list(group.members),
        "generation": group.generation,
        "transport": group.transport,
        "completed": group.last_completed,
    }


@psf.remote
async def make(name: str, size: int, rank: int | None = None, **options: Any) -> dict[str, Any]:
    group = await psf.current_cluster().process_group(name, size, rank=rank, **options)
    _groups[name] = group
    return facts(group)


@psf.remote
async def make_again(name: str, size: int) -> bool:
    """Whether asking a second and a third time, at once, gives the same group."""
    cluster = psf.current_cluster()
    found = await asyncio.gather(*(cluster.process_group(name, size) for _ in range(2)))
    return all(each is _groups[name] for each in found)


@psf.remote
async def total(name: str, values: int = 1000, timeout: float | None = None) -> list[float]:
    """First and last element of the sum of arrays filled with rank + 1."""
    group = _groups[name]
    array = np.full(values, group.rank + 1.0)
    await group.all_reduce(array, timeout=timeout)
    return [float(array[0]), float(array[-1])]


@psf.remote
async def until_it_fails(name: str, values: int) -> dict[str, Any]:
    """Adds arrays until that fails, and says how; every later call must fail likewise."""
    group = _groups[name]
    array = np.zeros(values, np.float32)
    error: psf.PsfError | None = None
    while error is None:
        try:
            await group.all_reduce(array)
        except psf.PsfError as failed:
            error, at = failed, time.monotonic()
    again: Any = None
    try:
        await group.barrier()
    except psf.PsfError as failed:
        again = failed
    return {
        "type": type(error).__name__,
        "text": str(error),
        "rank": getattr(error, "rank", None),
        "peer": getattr(error, "peer", ""),
        "at": at,
        "again": (type(again).__name__, str(again)),
        "completed": group.last_completed,
    }


@psf.remote
async def shrink(name: str, timeout: float | None = None) -> dict[str, Any]:
    group = _groups[name] = await _groups[name].shrink(timeout)
    return facts(group)


@psf.remote
async def split(name: str, color: int | None, key: int, new: str) -> dict[str, Any] | None:
    group = await _groups[name].split(color, key)
    if group is None:
        return None
    _groups[new] = group
    return facts(group)


@psf.remote
async def close(name: str) -> None:
    await _groups.pop(name).close()


@psf.remote
async def barrier(name: str, timeout: float | None = None) -> int:
    await _groups[name].barrier(timeout)
    return _groups[name].last_completed


@psf.remote
async def send(name: str, to: int, value: float) -> None:
    await _groups[name].send(np.array([value]), to)


@psf.remote
async def recv(name: str, source: int, timeout: float | None = None) -> float:
    return float((await _groups[name].recv(source, timeout=timeout))[0])


@psf.remote
def kept() -> dict[str, int]:
    """What of groups is alive in this process, and the mappings of segments."""
    gc.collect()
    counts = {"Seat": 0, "Segment": 0, "ProcessGroup": 0}
    for each in gc.get_objects():
        for kind in (Seat, psf.ProcessGroup):
            if type(each) is kind:
                counts[kind.__name__] += 1
        if type(each) is Segment and not each.closed:
            counts["Segment"] += 1
    return counts | {"mapped": Path("/proc/self/maps").read_text().count("memfd:psframework")}


@psf.remote
def now() -> float:
    return time.monotonic()


@psf.remote
async def barrier_and_close(name: str) -> int:
    group = _groups.pop(name)
    await group.barrier()
    await group.close()
    return group.last_completed


@psf.remote
def completed(name: str) -> int:
    return _groups[name].last_completed


@psf.remote
async def close_all() -> None:
    while _groups:
        await _groups.popitem()[1].close()
