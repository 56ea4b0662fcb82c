"""Functions that tests call in workers: `psf.local_cluster(workers=n, imports=["remote_functions"])`."""

import asyncio
import enum
import os
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

import psframework as psf
from psframework import nn


@psf.remote
def add(x: Any, y: Any) -> Any:
    return x + y


@psf.remote
def fail(text: str) -> None:
    raise ValueError(text)


@psf.remote
async def sleep(seconds: float) -> str:
    await asyncio.sleep(seconds)
    return "slept"


@psf.remote
def block(seconds: float) -> str:
    time.sleep(seconds)
    return "blocked"


@psf.remote
async def exit_in_a_task(awaited: bool) -> str:
    """A task of it ends the program, or tries to."""

    async def leave() -> None:
        sys.exit(3)

    task = asyncio.create_task(leave())
    if awaited:
        await task
    await asyncio.sleep(0.05)
    return "went on"


@psf.remote(idempotent=True)
def pid() -> int:
    return os.getpid()


@psf.remote
async def where() -> tuple[str, str, str]:
    return "async", psf.current_cluster().name, psf.current_caller().name


@psf.remote
def where_in_thread() -> tuple[str, str, str]:
    kind = "main" if threading.current_thread() is threading.main_thread() else "thread"
    return kind, psf.current_cluster().name, psf.current_caller().name


@psf.remote
async def end_the_member() -> None:
    """What no function may do."""
    await psf.current_cluster().shutdown()


@psf.remote
async def ask(member: str, function: str, *args: Any) -> Any:
    """Calls on: a function of another member, as seen from here."""
    return await psf.current_cluster().rpc_async(member, function, args)


@psf.remote
async def count_on(counter: psf.RRef, n: int) -> Any:
    """Uses a value that a third member keeps."""
    return await counter.rpc_async().add(n)


@psf.remote
async def fetch(rref: psf.RRef) -> Any:
    return await rref.to_here()


@psf.remote(roles=("admin",))
def for_admins() -> str:
    return "secret"


@psf.remote
def numbers(n: int) -> Iterator[int]:
    yield from range(n)


@psf.remote
async def for_ever() -> AsyncIterator[int]:
    number = 0
    while True:
        yield number
        number += 1


@psf.remote
class Counter:
    """A value to keep elsewhere."""

    def __init__(self, start: int = 0) -> None:
        self.value = start

    def add(self, n: int) -> int:
        self.value += n
        return self.value

    @staticmethod
    def zero() -> int:
        return 0


@psf.remote
async def ask_often(member: str, times: int) -> int:
    """Calls a member again and again; each call takes a moment."""
    for _ in range(times):
        await psf.current_cluster().rpc_async(member, sleep, (0.02,))
    return times


@psf.remote
def ask_from_a_thread() -> Any:
    return psf.current_cluster().rpc_async("worker-0", pid)


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


@psf.register_type
@dataclass
class Batch:
    """A value of a registered type."""

    x: Any
    y: Any = None


@psf.remote
class Net(nn.Module):
    """A module of the user's around one that it may be given."""

    def __init__(self, inner: nn.Module | None, width: int) -> None:
        self.inner = inner
        if not 0 < width < 100:
            raise ValueError(f"width={width}")
        self.norm = nn.LayerNorm(width)
        self.register_buffer("steps", np.zeros((), np.int64))
