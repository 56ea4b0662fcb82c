"""Streams: queues of work on a device. On the CPU they are null objects, so that callers never branch."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Protocol, Self


class Event(Protocol):
    """A place in a stream."""

    @property
    def done(self) -> bool:
        """Whether the device has passed it."""

    def synchronize(self) -> None:
        """Block this thread until the device has passed it."""


class Stream(Protocol):
    """A queue of work on one device; as a context manager it becomes the current one of this thread."""

    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    @property
    def done(self) -> bool:
        """Whether all work in it has ended."""

    def synchronize(self) -> None:
        """Block this thread until all work in it has ended."""

    def record(self) -> Event:
        """An event behind the work that is in it now."""

    def wait(self, event: Event) -> None:
        """Later work in this stream begins after `event`, which may be another stream's."""

    def when_done(self, callback: Callable[[], object]) -> None:
        """Call `callback` from another thread when the work that is in it now has ended.

        It must not call the device; an event loop's `call_soon_threadsafe` is what it is for.
        """


class HostEvent:
    """The CPU has done everything when a call returns."""

    done = True

    def synchronize(self) -> None:
        """Nothing to wait for."""


class HostStream:
    """The CPU's stream: it is always empty."""

    done = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    def synchronize(self) -> None:
        """Nothing to wait for."""

    def record(self) -> Event:
        """An event that has passed."""
        return _EVENT

    def wait(self, event: Event) -> None:
        """Block until another device's event has passed: the CPU has no queue that could wait for it."""
        event.synchronize()

    def when_done(self, callback: Callable[[], object]) -> None:
        """Call it now."""
        callback()


_EVENT = HostEvent()
HOST_STREAM = HostStream()
