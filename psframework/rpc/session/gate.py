"""What waits until a window has room."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from psframework.rpc.session.window import Window


class Gate:
    """Lets payloads into a window, in order.

    Args:
        window: of the session.
    """

    __slots__ = ("_last_ticket", "_waiting", "window")

    def __init__(self, window: Window) -> None:
        self.window = window
        self._waiting: OrderedDict[int, tuple[int, Callable[[], bool], Callable[[], None]]] = OrderedDict()
        self._last_ticket = 0

    def admits(self, cost: int) -> bool:
        """Takes `cost` bytes from the window, if it has room and nobody waits for it."""
        return not self._waiting and self.window.admit(cost)

    @property
    def is_waiting(self) -> bool:
        """Whether anything waits for the window."""
        return bool(self._waiting)

    def when_admitted(self, cost: int, wanted: Callable[[], bool], send: Callable[[], None]) -> int:
        """Runs `send` once the window has room for `cost` bytes, in order, if `wanted` still says so.

        Returns:
            A ticket for `withdraw`; 0 if it was sent.
        """
        if self.admits(cost):
            send()
            return 0
        self._last_ticket += 1
        self._waiting[self._last_ticket] = (cost, wanted, send)
        return self._last_ticket

    def withdraw(self, ticket: int) -> None:
        """Who waited for the window gave up: nothing of it is kept, and others need not wait behind it."""
        if self._waiting.pop(ticket, None) is not None:
            self._admit_waiting()

    def give_back(self, consumed: int) -> None:
        """The other end has consumed payload: lets what waits for the window go."""
        self.window.give_back(consumed)
        if self._waiting:
            self._admit_waiting()

    def drop_waiting(self) -> None:
        """Forgets what waits for the window; the peer is lost."""
        self._waiting.clear()

    def _admit_waiting(self) -> None:
        while self._waiting:
            cost, wanted, send = next(iter(self._waiting.values()))
            if not wanted():
                send = _nothing
            elif not self.window.admit(cost):
                return
            self._waiting.popitem(last=False)
            send()


def _nothing() -> None:
    pass
