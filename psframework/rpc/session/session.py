"""What one end of a call stream must remember so that connections may break: pure state, no I/O.

Frames are numbered from 1 for the whole life of a session, on whatever connection they travel. The sender
keeps each frame until the other end has acknowledged it and sends the rest again on a new connection; the
receiver drops what it has seen. So every frame arrives once, in order: each call runs once, each reply comes
once (PROTOCOLS 3). Payload bytes are counted against a window, so a slow receiver slows its callers.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from psframework.errors import WireError
from psframework.rpc.session.window import Window

MAX_BATCH: Final = 512 * 1024
"""Frames are packed into one message up to about this many bytes; a larger frame travels alone."""

ACK_EVERY: Final = 256
"""Frames received after which an acknowledgement is owed at once, even if there is nothing else to say."""


class Session:
    """One end of a session.

    Args:
        window: bytes of requests, and of replies, that may be on the way to the other end. It says so itself
            later.
        own_window: the same for the way here; 0 does not check.

    Attributes:
        received: all frames up to this number have arrived.
        requests, replies: windows for their bytes.
        sent: the highest frame number that was ever handed to a connection.
    """

    def __init__(self, window: int = 0, own_window: int = 0) -> None:
        self.requests = Window(window, own_window)
        self.replies = Window(window, own_window)
        self._unsent: deque[bytes] = deque()
        self._unacknowledged: deque[bytes] = deque()
        self._acknowledged = 0  # by the other end
        self.sent = 0
        self.received = 0
        self._reported = 0  # what the other end knows of `received`

    # Sending

    @property
    def next_number(self) -> int:
        """The number that the next frame will get."""
        return self._acknowledged + len(self._unacknowledged) + len(self._unsent) + 1

    @property
    def has_unsent(self) -> bool:
        """Whether frames wait for the connection."""
        return bool(self._unsent)

    @property
    def unsent(self) -> int:
        """Frames that wait for the connection."""
        return len(self._unsent)

    @property
    def kept(self) -> int:
        """Frames that are kept because the other end has not acknowledged them."""
        return len(self._unacknowledged) + len(self._unsent)

    def push(self, frame: bytes) -> int:
        """Queues an encoded frame; returns its number."""
        self._unsent.append(frame)
        return self._acknowledged + len(self._unacknowledged) + len(self._unsent)

    def take(self) -> tuple[int, list[bytes]]:
        """The frames for one message, and the number of the first; they count as sent from now on."""
        first = self._acknowledged + len(self._unacknowledged) + 1
        unsent, room = self._unsent, MAX_BATCH
        frames: list[bytes] = []
        while unsent and (room >= len(unsent[0]) or not frames):
            frame = unsent.popleft()
            frames.append(frame)
            room -= len(frame)
        self._unacknowledged.extend(frames)
        self.sent = max(self.sent, first + len(frames) - 1)
        return first, frames

    def acknowledge(self, through: int) -> None:
        """The other end has all frames up to `through`; WireError if it can't have."""
        kept = self._unacknowledged
        count = through - self._acknowledged
        if count > len(kept):
            raise WireError(f"frame {through} was acknowledged but never sent")
        if count > 0:
            for _ in range(count):
                kept.popleft()
            self._acknowledged = through

    def resume(self, received: int) -> None:
        """A new connection begins: the other end has frames up to `received`; the others are sent again."""
        if received < self._acknowledged:
            raise WireError(f"the other end lost frames {received + 1} to {self._acknowledged}")
        self.acknowledge(received)
        self._unsent.extendleft(reversed(self._unacknowledged))
        self._unacknowledged.clear()

    # Receiving

    def accept(self, first: int, count: int) -> int:
        """`count` frames from number `first` on have come; returns how many to skip as duplicates."""
        if not count:
            return 0
        skip = self.received + 1 - first
        if skip < 0:
            raise WireError(f"frame {first} came, but {self.received + 1} is next")
        self.received = max(self.received, first + count - 1)
        return min(skip, count)

    @property
    def owes_report(self) -> bool:
        """Whether the other end does not know yet all that has arrived and been consumed here."""
        return self.received != self._reported or self.requests.owes_report or self.replies.owes_report

    @property
    def report_is_urgent(self) -> bool:
        """Whether to report now rather than with the next frame or a moment later."""
        return (
            self.received - self._reported >= ACK_EVERY
            or self.requests.report_is_urgent
            or self.replies.report_is_urgent
        )

    def report(self) -> tuple[int, int, int]:
        """(received, consumed of requests, of replies) for the head of a message, or for a handshake."""
        self._reported = self.received
        return self.received, self.requests.report(), self.replies.report()

    def set_window(self, window: int) -> None:
        """The other end said how much it takes."""
        self.requests.size = self.replies.size = window
