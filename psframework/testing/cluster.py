"""Help for tests on real processes: programs as children that die with the test, and what they printed."""

from __future__ import annotations

import asyncio
import os
import textwrap
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from psframework.cluster.process import ServiceProcess, child_environment
from psframework.errors import DeadlineExceeded, PeerLost


class Program:
    """A Python program of a test, running as a process of its own.

    Attributes:
        process: the process, with `.pid`, `.kill()`, `.output`.
    """

    def __init__(self, process: ServiceProcess, news: asyncio.Event):
        self.process = process
        self._news = news

    async def line(self, words: str, timeout: float = 30.0) -> str:
        """Waits until it printed a line with these words (maybe before the call); returns the newest one.

        Raises:
            PeerLost: it ended without printing one.
            DeadlineExceeded: it did not within `timeout` seconds.
        """
        try:
            async with asyncio.timeout(timeout):
                while not (found := self._lines(words)):
                    await self._more()
        except TimeoutError:
            raise DeadlineExceeded(
                f"no {words!r} from {self.process.name}: {self.process.last_words}"
            ) from None
        return found[-1]

    def _lines(self, words: str) -> list[str]:
        self._news.clear()
        return [line for line in list(self.process.output) if words in line]

    async def _more(self) -> None:
        """Waits for another line, or for the end."""
        waits = [asyncio.ensure_future(self._news.wait()), asyncio.ensure_future(self.process.wait_ended())]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            if not waits[0].done():
                raise PeerLost(
                    f"{self.process.name} ended: {self.process.last_words}", peer=self.process.name
                )
        finally:
            for wait in waits:
                wait.cancel()

    async def end(self, timeout: float = 30.0) -> int:
        """Waits for its end; returns the exit status."""
        code = await self.process.wait(timeout)
        if code is None:
            raise DeadlineExceeded(f"{self.process.name} still runs: {self.process.last_words}")
        return code


@asynccontextmanager
async def program(
    folder: Path, name: str, source: str, arguments: Sequence[str] = ()
) -> AsyncIterator[Program]:
    """Runs `source` as the main program `name`.py of `folder` until the block is left.

    Args:
        folder: a temporary folder.
        name: name of the module; programs of one folder may import each other by it.
        source: its text; common indentation is removed.
        arguments: its command line.
    """
    (folder / f"{name}.py").write_text(textwrap.dedent(source))
    path = os.pathsep.join(filter(None, [str(folder), child_environment().get("PYTHONPATH")]))
    loop, news = asyncio.get_running_loop(), asyncio.Event()
    process = ServiceProcess(
        name,
        name,
        arguments,
        on_line=lambda _: loop.call_soon_threadsafe(news.set),
        environment={"PYTHONPATH": path},
    )
    process.start()
    try:
        yield Program(process, news)
    finally:
        process.kill()
        await process.wait(10.0)
        process.close()
