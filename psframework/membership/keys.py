"""The cluster's key-value store, as its clients use it."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import AsyncIterator, Callable

from psframework.errors import PeerLost, StaleTerm
from psframework.membership.keyvalue import KeyChanges, KeyEntry
from psframework.membership.line import FIRST_PAUSE, LONGEST_PAUSE, Line
from psframework.membership.messages import entry_from_message
from psframework.proto.v1 import coordinator_pb2 as pb
from psframework.rpc.deadline import Deadline

log = logging.getLogger(__name__)
DEFAULT_SECONDS = 30.0


class KeyValue:
    """Keys with revisions. Every call is retried over a restart of the coordinator; a member's
    `put` and `compare_and_set` are done once all the same, and told what became of them.

    Calls without a deadline have one of 30 s. All raise DeadlineExceeded if no coordinator answers, and
    Evicted if this member was fenced.

    Args:
        line: to the coordinator.
        writer: gives this member's incarnation; 0 for a client that is no member.
    """

    def __init__(self, line: Line, writer: Callable[[], int] = lambda: 0) -> None:
        self._line = line
        self._writer = writer
        self._sequence = itertools.count(1)

    async def get(self, key: str, deadline: Deadline | None = None) -> KeyEntry | None:
        """Returns the entry of a key, or None."""
        request = pb.GetKeyRequest(key=key)
        response = await self._line.call("GetKey", request, pb.GetKeyResponse, _or_default(deadline))
        return entry_from_message(response.entry) if response.HasField("entry") else None

    async def put(self, key: str, value: bytes, deadline: Deadline | None = None) -> int:
        """Writes a key (at most 512 bytes, the value 1 MiB); returns its new revision."""
        return (await self._put(key, value, None, deadline)).entry.revision

    async def compare_and_set(
        self, key: str, expected_revision: int, value: bytes, deadline: Deadline | None = None
    ) -> tuple[bool, KeyEntry | None]:
        """Writes a key if it has that revision (0: if there is none); returns (written?, the entry now)."""
        response = await self._put(key, value, expected_revision, deadline)
        return response.written, entry_from_message(response.entry) if response.HasField("entry") else None

    async def delete(
        self, key: str, expected_revision: int | None = None, deadline: Deadline | None = None
    ) -> bool:
        """Deletes a key, if it has that revision; returns whether this call did.

        A deletion whose answer was lost, and that is asked for again, returns False.
        """
        request = pb.DeleteKeyRequest(key=key, expected_revision=expected_revision, writer=self._writer())
        response = await self._line.call("DeleteKey", request, pb.DeleteKeyResponse, _or_default(deadline))
        return response.deleted

    async def list(self, prefix: str = "", deadline: Deadline | None = None) -> tuple[KeyEntry, ...]:
        """Returns the entries whose key begins with `prefix`, in the order of the keys."""
        request = pb.ListKeysRequest(prefix=prefix)
        response = await self._line.call("ListKeys", request, pb.ListKeysResponse, _or_default(deadline))
        return tuple(map(entry_from_message, response.entries))

    async def watch(self, prefix: str = "") -> AsyncIterator[KeyChanges]:
        """Yields the keys with a prefix, then what changes; goes on over restarts of the coordinator.

        The first has `complete`; so may later ones, and then what vanished meanwhile is in `deleted`. Close
        it (`aclose`, or cancel) when done.
        """
        known: set[str] = set()
        first, revision, pause = True, 0, FIRST_PAUSE
        while True:
            request = pb.WatchKeysRequest(prefix=prefix, after_revision=revision)
            try:
                async for message in self._line.stream("WatchKeys", request, pb.WatchKeysResponse):
                    written = tuple(map(entry_from_message, message.written))
                    keys = {entry.key for entry in written}
                    gone = known - keys if message.complete else set(message.deleted)
                    known = (known - gone) | keys
                    revision, pause = message.revision, FIRST_PAUSE
                    if first or written or gone:
                        yield KeyChanges(revision, message.complete, written, tuple(sorted(gone)))
                    first = False
            except (PeerLost, StaleTerm) as error:
                log.info("lost sight of the keys: %s", error)
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    async def _put(
        self, key: str, value: bytes, expected: int | None, deadline: Deadline | None
    ) -> pb.PutKeyResponse:
        request = pb.PutKeyRequest(
            key=key,
            value=value,
            expected_revision=expected,
            writer=self._writer(),
            sequence=next(self._sequence),
        )
        return await self._line.call("PutKey", request, pb.PutKeyResponse, _or_default(deadline))


def _or_default(deadline: Deadline | None) -> Deadline:
    return Deadline.after(DEFAULT_SECONDS) if deadline is None else deadline
