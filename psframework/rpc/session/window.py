"""Payload bytes on the way between two ends: a window, so that a slow receiver slows its senders. Pure state.

A session has one for requests and one for replies. With one for both, two members that call each other back
could stop each other: the requests of each fill the window of the other's replies, and end only with these.
"""

from __future__ import annotations

from psframework.errors import WireError


class Window:
    """Bytes of one kind, both ways.

    Args:
        size: how many may be on the way to the other end. It says so itself later.
        own_size: the same for the way here; 0 does not check.

    Attributes:
        size: as given, or as the other end said.
        consumed: bytes from the other end that this end is done with, since the session began.
    """

    __slots__ = ("_arrived", "_charged", "_own_size", "_reported", "_returned", "consumed", "size")

    def __init__(self, size: int = 0, own_size: int = 0) -> None:
        self.size = size
        self.consumed = 0
        self._own_size = own_size
        self._arrived = 0
        self._reported = 0  # what the other end knows of `consumed`
        self._charged = 0
        self._returned = 0

    # To the other end

    def admit(self, cost: int) -> bool:
        """Takes `cost` bytes, if they fit. What is larger than the window goes alone."""
        outstanding = self._charged - self._returned
        if outstanding and outstanding + cost > self.size:
            return False
        self._charged += cost
        return True

    def give_back(self, consumed: int) -> None:
        """The other end has consumed so many bytes, since the session began. WireError if it can't have."""
        if consumed > self._charged:
            raise WireError(f"{consumed} bytes were consumed of {self._charged} sent")
        self._returned = max(self._returned, consumed)

    # From the other end

    def take_in(self, cost: int) -> None:
        """`cost` bytes have come; WireError if the other end went beyond what this end allows."""
        outstanding = self._arrived - self.consumed
        if outstanding and outstanding + cost > self._own_size > 0:
            raise WireError(f"{outstanding + cost} bytes on the way; the window is {self._own_size}")
        self._arrived += cost

    @property
    def owes_report(self) -> bool:
        """Whether the other end does not know yet all that was consumed here."""
        return self.consumed != self._reported

    @property
    def report_is_urgent(self) -> bool:
        """Whether it may wait for that soon."""
        return self.consumed - self._reported >= self.size // 4 > 0

    def report(self) -> int:
        """`consumed`, for the other end."""
        self._reported = self.consumed
        return self.consumed
