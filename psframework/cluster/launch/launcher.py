"""Starts the ranks of one program and what they need, waits for them, and ends all of it within 5 s.

The first rank that fails, and the first signal, end the other ranks: they get SIGTERM (or the signal), and
SIGKILL 3 s later. A second signal kills at once. If `psf run` itself is killed, its processes notice by the
pipe that `ServiceProcess` gives them.
"""

from __future__ import annotations

import asyncio
import functools
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass

from psframework.cluster.launch.environment import World, free_port
from psframework.cluster.launch.program import Program
from psframework.cluster.local import LocalCluster, LocalOptions
from psframework.cluster.process import ServiceProcess
from psframework.errors import ArgumentError

_MAIN = "psframework.cluster.launch.main"
_GRACE_SECONDS = 3.0
_NEXT_SECONDS = 0.3  # others that fail so soon after the first most likely failed of it: they may say so
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

Show = Callable[[str, str], None]


@dataclass(frozen=True, slots=True)
class LaunchOptions:
    """What is started.

    Args:
        program: what each rank runs.
        ranks: how many there are.
        prefix: of their names.
        coordinator: addresses of a cluster to join; empty: one of their own, on this machine.
        parameter_servers, workers: how many services their own cluster has.
    """

    program: Program
    ranks: int = 1
    prefix: str = "rank"
    coordinator: tuple[str, ...] = ()
    parameter_servers: int = 0
    workers: int = 0

    def __post_init__(self) -> None:
        if self.ranks < 1:
            raise ArgumentError(f"--nproc-per-node {self.ranks}: at least one process has to run")
        if self.coordinator and (self.parameter_servers or self.workers):
            raise ArgumentError(
                f"parameter servers and workers belong to a cluster of its own, and this joins the one at "
                f"{', '.join(self.coordinator)}: start them there with psf serve, or leave out --coordinator "
                "(PSF_COORDINATOR)"
            )


class Launcher:
    """One run of `psf run`.

    Args:
        options: what is started.
        show: called with (label, line) for each line that a process writes, in a thread.
    """

    def __init__(self, options: LaunchOptions, show: Show) -> None:
        self._options = options
        self._show = show
        self._ranks: list[ServiceProcess] = []
        self._failed: list[ServiceProcess] = []  # in the order in which they ended
        self._left = options.ranks  # how many have not ended
        self._signal = 0  # the first that came
        self._news = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[object] | None = None

    async def run(self) -> int:
        """Runs it to its end.

        Returns: 0 if all ranks ended so; else the status of the first that failed, or 128 + signal.
        """
        self._task = asyncio.current_task()
        with self._signals():
            try:
                async with AsyncExitStack() as stack:
                    world = await self._world(stack)
                    stack.push_async_callback(self._kill)
                    self._start(world)
                    return await self._watch()
            except asyncio.CancelledError:
                if not self._signal:
                    raise
                return 128 + self._signal

    async def _world(self, stack: AsyncExitStack) -> World:
        """Starts what the ranks need, unless it is there."""
        options = self._options
        sharing = options.ranks + options.workers
        if options.coordinator:
            return World(options.ranks, ",".join(options.coordinator), options.prefix, sharing)
        module = options.program.imported_as if options.workers else None
        local = await stack.enter_async_context(
            LocalCluster(
                LocalOptions(
                    options.parameter_servers,
                    workers=options.workers,
                    imports=(module,) if module else (),
                    local_processes=sharing,
                    on_line=self._show_service,
                )
            )
        )
        for process in local.processes.values():
            watch = asyncio.create_task(self._report_end(process))
            stack.callback(watch.cancel)
        return World(options.ranks, local.address, options.prefix, sharing, local.token_file)

    def _start(self, world: World) -> None:
        port = free_port()
        for rank in range(world.size):
            process = ServiceProcess(
                world.name(rank),
                _MAIN,
                self._options.program.command,
                on_line=functools.partial(self._show, str(rank)),
                environment=world.environment(rank, os.environ, port),
            )
            self._ranks.append(process)
            process.start()

    async def _watch(self) -> int:
        """Waits until all ranks have ended; ends them once one failed, or a signal came."""
        follows = [asyncio.create_task(self._follow(rank)) for rank in self._ranks]
        while self._left and not self._signal and not self._failed:
            self._news.clear()
            await self._news.wait()
        if self._signal:
            await self._end(signal.SIGINT if self._signal == signal.SIGINT else signal.SIGTERM)
        elif self._left:
            await asyncio.wait(follows, timeout=_NEXT_SECONDS)
            self._say(self._failure() + ("; ending the other ranks" if self._left else ""))
            await self._end(signal.SIGTERM)
        elif self._failed:
            self._say(self._failure())
        await asyncio.gather(*follows)
        return self._status()

    async def _follow(self, rank: ServiceProcess) -> None:
        if await rank.wait_ended() != 0:
            self._failed.append(rank)
        self._left -= 1
        self._news.set()

    async def _end(self, number: int) -> None:
        """Lets the ranks come to their end, and kills those that take too long, or all at another signal."""
        for rank in self._ranks:
            rank.send_signal(number)
        await asyncio.gather(*(rank.wait(_GRACE_SECONDS) for rank in self._ranks))
        await self._kill()

    async def _kill(self) -> None:
        """Nothing of them is left afterwards, nor does anything hold on to them."""
        for rank in self._ranks:
            rank.kill()
        await asyncio.gather(*(rank.wait(_GRACE_SECONDS) for rank in self._ranks))
        for rank in self._ranks:
            rank.close()

    def _failure(self) -> str:
        first, *others = self._failed
        text = f"{self._place(first)} {_ending(first)}"
        if others:
            text += ", then " + ", ".join(f"{self._place(rank)} {_ending(rank)}" for rank in others)
        return text

    def _place(self, rank: ServiceProcess) -> str:
        return f"rank {self._ranks.index(rank)} ({rank.name}, pid {rank.pid})"

    def _status(self) -> int:
        if not self._failed:
            return 0
        if self._signal:
            return 128 + self._signal
        code = self._failed[0].returncode or 0
        return code if code > 0 else 128 - code

    @contextmanager
    def _signals(self) -> Iterator[None]:
        for number in _SIGNALS:
            self._loop.add_signal_handler(number, self._interrupt, number)
        try:
            yield
        finally:
            for number in _SIGNALS:
                self._loop.remove_signal_handler(number)

    def _interrupt(self, number: int) -> None:
        again, self._signal = self._signal, self._signal or number
        if again:
            for rank in self._ranks:
                rank.kill()
        elif not self._ranks and self._task is not None:
            self._task.cancel()  # it still starts
        self._news.set()

    def reader_left(self) -> None:
        """Ends it as SIGPIPE would: nobody reads what is shown. Any thread may call it."""
        self._loop.call_soon_threadsafe(self._interrupt, signal.SIGPIPE)

    async def _report_end(self, process: ServiceProcess) -> None:
        """Says so when a service ends by itself; whether the ranks can go on is theirs to find out."""
        await process.wait_ended()
        self._say(f"{process.name} {_ending(process)}: {process.last_words}")

    def _show_service(self, name: str, line: str) -> None:
        if self._left and not line.startswith(("serving on ", "joined as ")):  # nor how it ends
            self._show(name, line)

    def _say(self, text: str) -> None:
        print(f"psf run: {text}", file=sys.stderr, flush=True)


def _ending(process: ServiceProcess) -> str:
    code = process.returncode or 0
    if code >= 0:
        return f"ended with status {code}"
    try:
        return f"was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"was ended by signal {-code}"
