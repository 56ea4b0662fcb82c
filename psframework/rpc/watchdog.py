"""Tells when the event loop stands still: one warning for each block, with the line that blocks and the fix.

A tick runs on the loop and counts; a thread looks whether it still counts. Renewals of leases carry the
count, so the coordinator can tell a stalled member from a busy one.
"""

from __future__ import annotations

import asyncio
import linecache
import os
import sys
import sysconfig
import threading
import time
import weakref
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from types import FrameType

from psframework.observe.logs import get_logger

TICK_SECONDS = 0.02
LOOK_SECONDS = 0.04
BLOCKED_SECONDS = 0.25
_FRAMEWORK = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_LIBRARIES = tuple(
    {sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib")}
)
_CALLBACK = (
    f"asyncio{os.sep}events.py"  # the frame that runs one callback of the loop; those outside wait for it
)
_WAITING = ("selectors.py", f"asyncio{os.sep}runners.py", f"asyncio{os.sep}base_events.py")


@dataclass(frozen=True, slots=True)
class Block:
    """One block of the loop.

    Args:
        seconds: how long it has lasted when it was noticed.
        where: "file.py:12 in step: time.sleep(1)"; "" if nobody could look in time.
    """

    seconds: float
    where: str


class BlockDetector:
    """Decides what is a block, and that each is told once. Pure: times come in from outside.

    A tick that is late is no block by itself: a starved machine, or a C call in another thread that keeps
    the GIL, looks the same. It is one if the loop's thread was seen in somebody's code, or used the CPU.

    Args:
        threshold: seconds of lateness from which on it is one.
        interval: seconds between ticks.
        now: the time of the first tick.
        cpu: CPU seconds of the loop's thread at that time.
    """

    def __init__(self, threshold: float, interval: float, now: float, cpu: float):
        self._threshold = threshold
        self._interval = interval
        self._last, self._cpu = now, cpu
        self._where: str | None = None
        self._told = False
        self._lock = threading.Lock()

    def tick(self, now: float, cpu: float) -> Block | None:
        """The loop runs. Returns the block that just ended, if it is not told yet."""
        with self._lock:
            late = now - self._last - self._interval
            busy = self._where is not None or cpu - self._cpu > late / 2
            block = (
                Block(late, self._where or "") if late > self._threshold and busy and not self._told else None
            )
            self._last, self._cpu, self._where, self._told = now, cpu, None, False
            return block

    def look(self, now: float, where: Callable[[], str | None]) -> Block | None:
        """The watching thread looks. Returns the block that goes on, if it is not told yet.

        Args:
            now: the time.
            where: tells which line the loop's thread executes; None while it waits for events.
        """
        with self._lock:
            late = now - self._last - self._interval
            if self._told or late < self._threshold / 2:
                return None
            self._where = where() or self._where
            if late <= self._threshold or self._where is None:
                return None
            self._told = True
            return Block(late, self._where)


class LoopTick:
    """Counts on one event loop, watched by one thread. Made by `watch_loop`.

    Attributes:
        count: raised every 20 ms while the loop runs; any thread may read it.
    """

    def __init__(self, threshold: float = BLOCKED_SECONDS):
        self.count = 0
        self._threshold = threshold
        self._detector: BlockDetector | None = None
        self._handle: asyncio.TimerHandle | None = None
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()

    def start(self) -> None:
        """Begins to tick on the running loop; call it there."""
        loop = asyncio.get_running_loop()
        detector = BlockDetector(self._threshold, TICK_SECONDS, time.monotonic(), time.thread_time())
        self._detector = detector
        self._handle = loop.call_later(TICK_SECONDS, self._tick, loop, detector)
        args = (detector, threading.get_ident())
        self._thread = threading.Thread(target=self._watch, args=args, name="psf-watchdog", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ends tick and thread; call it on the same loop."""
        self._stop.set()
        if self._handle is not None:
            self._handle.cancel()
        if self._thread is not None:
            self._thread.join(1.0)

    def _tick(self, loop: asyncio.AbstractEventLoop, detector: BlockDetector) -> None:
        self.count += 1
        _warn(detector.tick(time.monotonic(), time.thread_time()))
        self._handle = loop.call_later(TICK_SECONDS, self._tick, loop, detector)

    def _watch(self, detector: BlockDetector, loop_thread: int) -> None:
        def where() -> str | None:
            return blocking_line(sys._current_frames().get(loop_thread))

        while not self._stop.wait(LOOK_SECONDS):
            _warn(detector.look(time.monotonic(), where))


_Users = tuple[LoopTick, int]
_running: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Users] = weakref.WeakKeyDictionary()


@asynccontextmanager
async def watch_loop() -> AsyncIterator[LoopTick]:
    """Watches the running loop; all who ask for one loop share one tick, so a block is told once."""
    loop = asyncio.get_running_loop()
    tick, users = _running.get(loop, (None, 0))
    if tick is None:
        tick = LoopTick()
        tick.start()
    _running[loop] = tick, users + 1
    try:
        yield tick
    finally:
        tick, users = _running[loop]
        if users > 1:
            _running[loop] = tick, users - 1
        else:
            del _running[loop]
            tick.stop()


def blocking_line(frame: FrameType | None) -> str | None:
    """Which line of the user's code a thread executes.

    Args:
        frame: the innermost frame of that thread.

    Returns:
        "file.py:12 in step: time.sleep(1)": the innermost line outside of libraries and psframework, else the
        innermost one; None if the thread waits for events, or ticks.
    """
    if frame is None or frame.f_code.co_filename.endswith(_WAITING):
        return None
    if (
        frame.f_code.co_filename == __file__
    ):  # our tick, maybe waiting for the watching thread: it is free again
        return None
    each: FrameType | None = frame
    while each is not None and _is_library(each.f_code.co_filename):
        each = None if each.f_code.co_filename.endswith(_CALLBACK) else each.f_back
    each = each or frame
    # A frame that runs meanwhile may have no line at this moment.
    file, line = each.f_code.co_filename, each.f_lineno or each.f_code.co_firstlineno
    source = linecache.getline(file, line).strip()
    near = os.path.relpath(file) if file.startswith(os.getcwd() + os.sep) else file
    return f"{near}:{line} in {each.f_code.co_name}" + (f": {source}" if source else "")


def _is_library(file: str) -> bool:
    return file.startswith((*_LIBRARIES, _FRAMEWORK, "<frozen"))


def _warn(block: Block | None) -> None:
    if block is not None:
        get_logger("psframework.rpc.watchdog").warning(
            "event loop blocked: nothing else in this process is served meanwhile",
            milliseconds=round(block.seconds * 1000),
            where=block.where or "unknown (a C call that keeps the GIL)",
            fix="await psf.compute(function, *args) runs it in the compute thread",
        )
