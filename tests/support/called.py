"""Functions that tests of remote calls call; importable by the members, in whichever process."""

import asyncio
import contextlib
import contextvars
import os
import threading
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import numpy as np

from psframework.rpc.functions.context import current_caller, running_deadline
from psframework.rpc.registry import remote

ran: list[Any] = []
cancelled: list[Any] = []
closed: list[Any] = []
gate = threading.Event()
member: contextvars.ContextVar[str] = contextvars.ContextVar("member")
remotes: dict[str, Any] = {}  # the Remote of each member of this process, by name


class Two(Exception):
    """One whose constructor nobody can guess."""

    def __init__(self, first: int, second: int) -> None:
        super().__init__(f"{first} and {second}")


@remote
def add(x: Any, y: Any = 0) -> Any:
    ran.append((x, y))
    return x + y


@remote
async def add_async(x: Any, y: Any = 0) -> Any:
    await asyncio.sleep(0)
    return x + y


@remote
def echo(x: Any) -> Any:
    return x


@remote
async def echo_async(x: Any) -> Any:
    return x


@remote
def describe(x: Any) -> tuple[str, tuple[int, ...], str]:
    return str(x.dtype), x.shape, type(x).__name__


@remote
def fill(nbytes: int) -> Any:
    ran.append(nbytes)
    return np.full(nbytes, len(ran) % 256, np.uint8)


@remote
async def fill_async(nbytes: int, seconds: float = 0.0) -> Any:
    await asyncio.sleep(seconds)
    return fill(nbytes)


@remote
async def hold(key: Any = None, seconds: float = 60.0) -> Any:
    ran.append(key)
    try:
        await asyncio.sleep(seconds)
    except asyncio.CancelledError:
        cancelled.append(key)
        raise
    return key


@remote
def wait_for_gate(key: Any = None) -> Any:
    ran.append(key)
    assert gate.wait(30)
    return key


@remote
async def deaf() -> None:
    """Goes on, whoever cancels it, until the gate is open."""
    while not gate.is_set():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(0.01)


@remote
def sleep(seconds: float) -> float:
    time.sleep(seconds)
    return seconds


@remote
def fail(kind: str) -> None:
    raise {
        "two": Two(1, 2),
        "value": ValueError("bad value"),
        "key": KeyError("no key"),
        "unicode": UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad byte"),
        "stop": StopIteration(3),
        "exit": SystemExit(3),
        "interrupt": KeyboardInterrupt("stop"),
        "generator": GeneratorExit("end"),
        "cancel": asyncio.CancelledError("by itself"),
        "timeout": TimeoutError("too late"),
        "group": ExceptionGroup("many", [ValueError("one"), KeyError("two")]),
        "local": type("Local", (ValueError,), {"__str__": lambda self: 1 / 0})(),
    }[kind]


@remote
async def fail_async(kind: str) -> None:
    fail(kind)


@remote
def who() -> tuple[str, str, dict[str, str]]:
    caller = current_caller()
    return caller.name, caller.role, dict(caller.metadata)


@remote
async def who_async() -> tuple[str, str, dict[str, str]]:
    return who()


@remote(roles=("boss",))
def only_boss() -> str:
    return "yes"


@remote(idempotent=True)
async def again(key: Any) -> int:
    ran.append(key)
    return ran.count(key)


@remote
async def time_left(path: list[str]) -> list[float]:
    """What is left of the deadline here, and along a path of members."""
    left = running_deadline().remaining()
    if not path:
        return [left]
    me = remotes[current_member()]
    return [left, *await me.rpc_async(path[0], time_left, (path[1:],))]


@remote
async def ping_pong(path: list[str], load: Any = None) -> int:
    """Calls the members of a path, each from the one before it, with something heavy to carry."""
    if not path:
        return 0
    return 1 + int(await remotes[current_member()].rpc_async(path[0], ping_pong, (path[1:], load)))


def current_member() -> str:
    """Which member of the test's process runs this; set by `enter`."""
    return member.get()


@remote
def count(n: int, size: int = 0, fail_at: int = -1) -> Iterator[Any]:
    try:
        for index in range(n):
            if index == fail_at:
                raise ValueError(f"item {index}")
            ran.append(index)
            yield np.full(size, index) if size else index
    finally:
        closed.append("count")


@remote
async def count_async(n: int, size: int = 0, fail_at: int = -1) -> AsyncIterator[Any]:
    buffer = np.zeros(max(1, size))
    try:
        for index in range(n):
            if index == fail_at:
                raise ValueError(f"item {index}")
            ran.append(index)
            buffer[:] = index  # the same array each time
            yield buffer if size else index
            await asyncio.sleep(0)
    finally:
        closed.append("count_async")


@remote
async def tick(seconds: float) -> AsyncIterator[int]:
    index = 0
    try:
        while True:
            yield index
            index += 1
            await asyncio.sleep(seconds)
    finally:
        closed.append("tick")


@remote
def process_id() -> int:
    return os.getpid()


@remote
class Point:
    """A class with methods that need no object."""

    def __init__(self, x: int) -> None:
        self.x = x

    @staticmethod
    def origin() -> int:
        return 0

    @classmethod
    def name(cls) -> str:
        return cls.__name__

    def move(self) -> None: ...


def clear() -> None:
    """Forgets what happened."""
    for events in (ran, cancelled, closed):
        events.clear()
    gate.clear()
    remotes.clear()


kept = np.zeros(400_000)


@remote
async def give_and_change() -> Any:
    """Gives an array away and changes it right after."""
    asyncio.get_running_loop().call_later(0.001, kept.__iadd__, 1.0)
    return kept


left_behind: list["asyncio.Task[Any]"] = []


@remote
async def leave_a_task(member_name: str) -> None:
    """Starts a task that calls a member once the gate is open, and returns."""
    me = remotes[current_member()]

    async def work() -> Any:
        while not gate.is_set():  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        return await me.rpc_async(member_name, add, (1, 2))

    left_behind.append(asyncio.create_task(work()))


@remote
async def stubborn() -> AsyncIterator[int]:
    """A generator that goes on when it is cancelled."""
    index = 0
    try:
        while True:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0.001)
            yield index
            index += 1
    finally:
        closed.append("stubborn")


@remote
def unsendable() -> Any:
    return {"lock": [threading.Lock()]}
