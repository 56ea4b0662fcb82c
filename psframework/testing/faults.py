"""Faults on real connections: a small TCP proxy that can cut, hold, delay or swallow what passes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from types import TracebackType
from typing import Self

BLOCK = 64 * 1024


class FaultyLink:
    """A TCP proxy on loopback in front of HOST:PORT; an async context manager.

    Args:
        target: HOST:PORT that connections are passed on to.
        delay: seconds by which each block is delayed, in both directions.

    Attributes:
        passed: bytes passed so far, both directions together.
        accepted: connections accepted so far.
    """

    def __init__(self, target: str, *, delay: float = 0.0) -> None:
        self._host, _, port = target.rpartition(":")
        self._port = int(port)
        self._delay = delay
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._refusing = False
        self._triggers: list[tuple[int, Callable[[], None]]] = []
        self.passed = 0
        self.accepted = 0

    @property
    def address(self) -> str:
        """HOST:PORT to connect to instead of the target."""
        assert self._server is not None
        return f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    @property
    def flowing(self) -> bool:
        """False while a black hole swallows everything."""
        return self._flowing.is_set()

    def redirect(self, target: str) -> None:
        """Passes new connections on to another HOST:PORT, such as one that was not known at first."""
        self._host, _, port = target.rpartition(":")
        self._port = int(port)

    def cut(self) -> None:
        """Resets every connection that is open now; new ones are accepted."""
        for writer in list(self._writers):
            writer.transport.abort()

    def refuse(self) -> None:
        """Cuts, and drops every new connection until `heal`."""
        self._refusing = True
        self.cut()

    def blackhole(self) -> None:
        """Keeps connections open but passes nothing on, in either direction, until `heal` or `cut`."""
        self._flowing.clear()

    def heal(self) -> None:
        """Passes everything on again, and accepts new connections."""
        self._refusing = False
        self._flowing.set()

    def after(self, nbytes: int, action: Callable[[], None]) -> None:
        """Runs `action` (such as `cut`) once, as soon as `nbytes` more bytes have passed."""
        self._triggers.append((self.passed + nbytes, action))

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._writers.add(writer)
        self.accepted += 1
        other: asyncio.StreamWriter | None = None
        try:
            if self._refusing:
                return
            back, other = await asyncio.open_connection(self._host, self._port)
            self._writers.add(other)
            await asyncio.gather(self._pass(reader, other), self._pass(back, writer))
        except (OSError, asyncio.CancelledError):
            pass  # the connection ends here in any case; nobody waits for this task's result
        finally:
            self._tasks.discard(task)
            for each in (writer, other):
                if each is not None:
                    self._writers.discard(each)
                    each.transport.abort()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while block := await reader.read(BLOCK):
            if self._delay:
                await asyncio.sleep(self._delay)
            await self._flowing.wait()
            writer.write(block)
            await writer.drain()
            self.passed += len(block)
            self._fire()
        with contextlib.suppress(OSError):
            writer.write_eof()

    def _fire(self) -> None:
        due = [action for at, action in self._triggers if at <= self.passed]
        self._triggers = [(at, action) for at, action in self._triggers if at > self.passed]
        for action in due:
            action()
