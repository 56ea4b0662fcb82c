"""Functions for tests of faults."""

import asyncio
import time
import zlib
from collections import Counter
from collections.abc import AsyncIterator

import numpy as np

import psframework as psf

ran: Counter[int] = Counter()


@psf.remote
def run_once(number: int) -> int:
    """Counts how often it was called with that number."""
    ran[number] += 1
    return number


@psf.remote
def most_runs() -> tuple[int, int]:
    """How many numbers ran, and how often the most frequent of them."""
    return len(ran), max(ran.values())


@psf.remote
async def hold_the_loop(seconds: float) -> str:
    """What a careless user writes."""
    time.sleep(seconds)  # noqa: ASYNC251
    return "held"


@psf.remote
async def slowly(seconds: float) -> AsyncIterator[str]:
    """Yields after a while."""
    await asyncio.sleep(seconds)
    yield "at last"


@psf.remote
class Slow:
    """It takes a while to make one."""

    def __init__(self, seconds: float) -> None:
        time.sleep(seconds)


@psf.remote
def checksum(array: np.ndarray) -> tuple[int, int]:
    """Size in bytes and CRC of an array."""
    return array.nbytes, zlib.crc32(array)


class TwoArguments(Exception):
    """Its constructor takes no single text, as exceptions that travel by pickle must."""

    def __init__(self, first: int, second: int) -> None:
        super().__init__(f"{first} and {second}")


@psf.remote
def raise_two() -> None:
    """Fails."""
    raise TwoArguments(1, 2)
