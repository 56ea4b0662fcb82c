"""One service of a local cluster as a real process of this machine: start, wait until it serves, kill, reap.

The child exits by itself when this process ends in whatever way: it holds the reading end of a pipe whose
writing end only lives here (PROTOCOLS 17). A thread drains its output, so a busy loop here can't block it.
What it started and left behind is killed when it has ended, unless that has a session of its own.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import functools
import os
import re
import signal
import site
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from psframework.errors import ConfigurationError, DeadlineExceeded, PeerLost

_SERVING = re.compile(r"serving on (\S+:\d+)")
_JOINED = re.compile(r"joined as (\S+)")
_OUTPUT_SECONDS = 2.0  # for reading what is left of a child's output
_INHERITED = ("PSF_ALLOCATOR", "PSF_SHM_DIR", "PSF_LANES", "PSF_LOG_LEVEL", "PSF_TUNING")


def child_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of a child: ours, less what `PSF_*` says about *this* process, and no psf.toml."""
    environment = {
        key: value for key, value in os.environ.items() if not key.startswith("PSF_") or key in _INHERITED
    }
    environment["PSF_CONFIG"] = os.devnull
    root = str(Path(__file__).resolve().parents[2])
    if root not in {str(Path(folder).resolve()) for folder in site.getsitepackages()}:
        paths = [root, *filter(None, [environment.get("PYTHONPATH")])]
        environment["PYTHONPATH"] = os.pathsep.join(paths)
    return environment | dict(extra or {})


class ServiceProcess:
    """A child process `python -P -m MODULE ARGUMENTS`.

    Args:
        name: the member's name, for messages.
        module: dotted name of the module to run.
        arguments: its command line.
        on_line: called with each line of its output, in a thread of this process.
        environment: variables on top of `child_environment()`.
    """

    def __init__(
        self,
        name: str,
        module: str,
        arguments: Sequence[str],
        *,
        on_line: Callable[[str], object] | None = None,
        environment: Mapping[str, str] | None = None,
    ):
        self.name = name
        self.module = module
        self.arguments = tuple(arguments)
        self.address = ""
        self.output: collections.deque[str] = collections.deque(maxlen=200)
        self._on_line = on_line
        self._environment = environment
        self._child: subprocess.Popen[bytes] | None = None
        self._lifeline = -1
        self._events: asyncio.Queue[str | None] = asyncio.Queue()
        self._ended = asyncio.Event()

    def start(self) -> None:
        """Starts the process (again); returns before it serves."""
        self.close()
        self._events, self._ended = asyncio.Queue(), asyncio.Event()
        reading, self._lifeline = os.pipe()
        try:
            self._child = subprocess.Popen(
                [sys.executable, "-P", "-m", self.module, *self.arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env=child_environment({"PSF_PARENT_FD": str(reading), **(self._environment or {})}),
                pass_fds=(reading,),
                start_new_session=True,
            )
        finally:
            os.close(reading)
        report = functools.partial(_post, asyncio.get_running_loop(), self._events, self._ended)
        drain = self._thread("output of", self._drain, self._child, report)
        self._thread("end of", _reap, self._child, drain, report)

    def _thread(self, what: str, target: Callable[..., None], *arguments: object) -> threading.Thread:
        thread = threading.Thread(target=target, args=arguments, name=f"{what} {self.name}", daemon=True)
        thread.start()
        return thread

    def _drain(self, child: subprocess.Popen[bytes], report: Callable[[str | None], None]) -> None:
        assert child.stdout is not None
        for raw in child.stdout:
            line = raw.decode(errors="replace").rstrip("\n")
            self.output.append(line)
            if self._on_line is not None:
                self._on_line(line)
            if found := _SERVING.search(line) or _JOINED.search(line):
                report(found.group(1))
        child.stdout.close()

    @property
    def pid(self) -> int:
        """Process id; of the last life, when it has ended."""
        if self._child is None:
            raise ConfigurationError(f"{self.name} was not started")
        return self._child.pid

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self._child is not None and self._child.poll() is None

    @property
    def returncode(self) -> int | None:
        """Exit status, negative for a signal, None while it runs."""
        return None if self._child is None else self._child.poll()

    def kill(self) -> None:
        """SIGKILL, as a crash would be; does nothing when it has ended."""
        self.send_signal(signal.SIGKILL)

    def send_signal(self, number: int) -> None:
        """Sends a signal; does nothing when the process has ended."""
        if self.alive:
            assert self._child is not None
            self._child.send_signal(number)

    async def wait_serving(self, timeout: float, *, joined: bool = False) -> str:
        """Waits for its line `serving on HOST:PORT` and, with `joined`, for `joined as NAME`.

        Returns: the address.

        Raises:
            PeerLost: the process ended first; the message has its last words.
            DeadlineExceeded: neither happened in `timeout` seconds.
        """
        try:
            async with asyncio.timeout(timeout):
                self.address = await self._next_event()
                if joined:
                    await self._next_event()
        except TimeoutError:
            raise DeadlineExceeded(f"{self.name} was not ready in {timeout:g} s: {self.last_words}") from None
        return self.address

    async def _next_event(self) -> str:
        event = await self._events.get()
        if event is None:
            message = (
                f"{self.name} ended with status {self.returncode} before it was ready: {self.last_words}"
            )
            raise PeerLost(message, peer=self.name, reason="closed", may_have_run=False)
        return event

    async def wait(self, timeout: float) -> int | None:
        """Waits until the process has ended and its output is read; None if it still runs after `timeout`."""
        try:
            async with asyncio.timeout(timeout):
                await self.wait_ended()
        except TimeoutError:
            pass
        return self.returncode

    async def wait_ended(self) -> int | None:
        """Waits, however long it takes, until the process has ended by itself; returns its exit status."""
        await self._ended.wait()
        return self.returncode

    async def stop(self, grace: float) -> None:
        """SIGTERM, and after `grace` seconds SIGKILL; returns when it is gone."""
        if self._child is None:
            return
        self.send_signal(signal.SIGTERM)
        if await self.wait(grace) is None:
            self.kill()
            await self.wait(10.0)
        self.close()

    def close(self) -> None:
        """Lets go of the child's lifeline; a child that still runs exits."""
        if self._lifeline >= 0:
            os.close(self._lifeline)
            self._lifeline = -1

    @property
    def last_words(self) -> str:
        """The end of its output."""
        return "\n".join(list(self.output)[-15:]) or "(it wrote nothing)"


def _reap(
    child: subprocess.Popen[bytes], drain: threading.Thread, report: Callable[[str | None], None]
) -> None:
    """Waits for the end of a child and of its output, which one that it left behind may hold open."""
    with contextlib.suppress(ChildProcessError):  # somebody has asked for its status already
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # not reaped: its number stays its own
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    drain.join(_OUTPUT_SECONDS)
    child.wait()
    report(None)


def _post(
    loop: asyncio.AbstractEventLoop, events: asyncio.Queue[str | None], ended: asyncio.Event, item: str | None
) -> None:
    try:
        loop.call_soon_threadsafe(events.put_nowait, item)
        if item is None:
            loop.call_soon_threadsafe(ended.set)
    except RuntimeError:
        pass  # the loop is closed: nobody waits any more
