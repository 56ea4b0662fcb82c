"""Members for tests of remote calls: in this process, and in processes of their own."""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import called

from psframework.rpc.functions.routes import Address
from psframework.testing.workers import Phonebook, Worker, worker

SUPPORT = Path(__file__).parent


@dataclass
class Crew:
    """Members that know each other."""

    stack: AsyncExitStack
    book: Phonebook = field(default_factory=Phonebook)

    async def hire(self, name: str, **options: Any) -> Worker:
        made = await self.stack.enter_async_context(
            worker(name, self.book, enter=lambda: _enter(name), **options)
        )
        called.remotes[name] = made.remote
        return made

    async def process(
        self, name: str, *more: str, script: str = "remote_member.py"
    ) -> asyncio.subprocess.Process:
        """One in a process of its own."""
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            str(SUPPORT / script),
            name,
            *more,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": os.pathsep.join([str(SUPPORT), str(SUPPORT.parent.parent)])},
        )
        self.stack.push_async_callback(end, process)
        assert process.stdout is not None
        address, incarnation = (await asyncio.wait_for(process.stdout.readline(), 30)).decode().split()
        self.book.known[name] = Address([address], "worker", int(incarnation))
        return process


def _enter(name: str) -> None:
    called.member.set(name)


async def end(process: asyncio.subprocess.Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(signal.SIGCONT)
        process.kill()
    await process.wait()


async def until(condition: Callable[[], object], seconds: float = 5.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.001)
