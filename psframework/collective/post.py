"""Messages between the ranks of one group. No I/O: what carries them is `client.py`'s."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from psframework.rpc.deadline import Deadline
from psframework.wire.memory import Buffer


class Key(NamedTuple):
    """Which message: of a sender, each is sent once.

    Attributes:
        channel: "" for collectives; "p2p" for send and recv; each transport inside a hierarchy has its own.
        sequence: number of the operation; of a send, its number among those to this rank with this tag.
        step: within the operation; of a send, its tag.
    """

    channel: str
    sequence: int
    step: int = 0


class Letter(NamedTuple):
    """What arrived.

    Attributes:
        header: what the sender put in, such as an encoded descriptor.
        parts: read-only views; they stay valid as long as something refers to them, and may pin memory of the
            sender: copy what is kept.
    """

    header: bytes
    parts: Sequence[memoryview]


class Post(Protocol):
    """Carries letters between the ranks of a group. On the loop only."""

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    @property
    def names(self) -> Sequence[str]:
        """The members' names, by rank."""
        ...

    @property
    def numbers(self) -> Sequence[int]:
        """Which ranks of the whole group they are, as messages for people count them."""
        ...

    async def send(
        self, to: int, key: Key, header: bytes, parts: Sequence[Buffer], deadline: Deadline
    ) -> None:
        """Delivers a letter; returns once it has arrived (not: once it was taken). Parts are not copied
        and must not change until then.

        Raises:
            PeerLost: the rank is gone; names it.
            DeadlineExceeded: it did not arrive in time.
            PsfError: the group was aborted: the error it was aborted with.
        """
        ...

    async def receive(self, source: int, key: Key, deadline: Deadline) -> Letter:
        """The letter of that key, which may have come before it was asked for; each can be taken once.

        Raises:
            PeerLost, DeadlineExceeded: it will not come, or did not in time; names the rank.
            PsfError: the group was aborted: the error it was aborted with.
        """
        ...
