"""Who wants to be told that a session has ended."""

from __future__ import annotations

from collections.abc import Callable


class Mourners:
    """Callbacks for one event, each called once unless it is taken back before."""

    def __init__(self) -> None:
        self._callbacks: dict[object, Callable[[], None]] = {}

    def add(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Will call `callback`; returns what takes that back."""
        key = object()
        self._callbacks[key] = callback

        def take_back() -> None:
            self._callbacks.pop(key, None)

        return take_back

    def tell(self) -> None:
        """The event: calls those that were added before, in that order."""
        for key in list(self._callbacks):
            if (callback := self._callbacks.pop(key, None)) is not None:
                callback()
