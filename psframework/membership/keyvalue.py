"""A small key-value store with revisions: decided, published, and watched. No I/O.

Every write gets a revision that is never used again, so a compare-and-set can't be fooled by a value that
changed and changed back. A write that is repeated by the same member under the same number is done once, and
told what became of the first, whatever others wrote since.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from psframework.errors import ArgumentError, ResourceExhausted
from psframework.membership.names import check_key
from psframework.membership.store import Change, Write

HISTORY = 4096  # changes kept for watchers; one that is further behind begins anew
MAX_VALUE = 1024 * 1024  # bytes
MAX_TOTAL = 32 * 1024 * 1024  # bytes of all keys and values: this is for control, not for data
KEY_PREFIX = "key/"
REVISION_KEY = "meta/revision"
WRITER_PREFIX = "writer/"
REMEMBERED = 64  # numbered writes of one member; more are not under way at once
_NUMBERED = struct.Struct(">QQ")  # number of a write, its revision


@dataclass(frozen=True, slots=True)
class KeyEntry:
    """A key with its value.

    Attributes:
        revision: of the write that made it.
        writer, sequence: the incarnation that wrote it, and its number of the write; 0 if not a member.
    """

    key: str
    value: bytes
    revision: int
    writer: int = 0
    sequence: int = 0


@dataclass(frozen=True, slots=True)
class KeyChanges:
    """What happened to the keys of a prefix up to `revision`.

    Attributes:
        complete: `written` is all that there is, not only what is new.
        deleted: keys that are gone.
    """

    revision: int
    complete: bool
    written: tuple[KeyEntry, ...] = ()
    deleted: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Decision:
    """What became of a write: done or not, the entry as decided, and what to store (None: nothing)."""

    done: bool
    entry: KeyEntry | None
    change: Change | None


class KeyTable:
    """All keys: as published (durable), and what is decided beyond that."""

    def __init__(self) -> None:
        self.revision = 0  # of the newest published write
        self._published: dict[str, KeyEntry] = {}
        self._pending: dict[str, list[KeyEntry | None]] = {}  # decided, oldest first; None: deleted
        self._history: deque[tuple[int, str, KeyEntry | None]] = deque(maxlen=HISTORY)
        self._numbered: dict[int, dict[int, int]] = {}  # writer -> {number of a write: its revision}
        self._decided_revision = 0
        self._total = 0
        self._listeners: list[Callable[[], None]] = []

    def load(
        self, entries: Iterable[KeyEntry], revision: int, numbered: Iterable[tuple[str, bytes]] = ()
    ) -> None:
        """Takes over what was stored: entries, the newest revision, and items under `WRITER_PREFIX`."""
        for key, stored in numbered:
            self._numbered[int(key.removeprefix(WRITER_PREFIX))] = dict(_NUMBERED.iter_unpack(stored))
        self._published = {entry.key: entry for entry in entries}
        self._total = sum(map(_size, self._published.values()))
        self.revision = self._decided_revision = revision

    def listen(self, listener: Callable[[], None]) -> None:
        """Calls `listener` after each published write."""
        self._listeners.append(listener)

    def get(self, key: str) -> KeyEntry | None:
        """Returns the published entry of a key, or None."""
        return self._published.get(key)

    def list(self, prefix: str) -> tuple[KeyEntry, ...]:
        """Returns the published entries whose key begins with `prefix`, in the order of the keys."""
        found = [entry for key, entry in self._published.items() if key.startswith(prefix)]
        return tuple(sorted(found, key=lambda entry: entry.key))

    def put(
        self, key: str, value: bytes, *, expected: int | None = None, writer: int = 0, sequence: int = 0
    ) -> Decision:
        """Decides a write.

        Args:
            key: the key.
            value: its value, at most 1 MiB.
            expected: the revision that it must have (0: there must be none); None: whatever it is.
            writer: incarnation of who writes; 0 if it is not a member.
            sequence: the writer's number of this write, the same in each retry; 0: not numbered.

        Raises:
            ArgumentError: a key or value that is too long.
            ResourceExhausted: the store is full.
        """
        check_key(key)
        if len(value) > MAX_VALUE:
            raise ArgumentError(f"value of {key!r}: {len(value)} bytes, at most {MAX_VALUE} fit")
        done = self._numbered.get(writer, {}).get(sequence)
        if done is not None:
            return Decision(True, KeyEntry(key, bytes(value), done, writer, sequence), None)
        known = self._decided(key)
        if expected is not None and expected != (known.revision if known else 0):
            return Decision(False, known, None)
        entry = KeyEntry(key, bytes(value), self._decided_revision + 1, writer, sequence)
        if self._total + _size(entry) - (_size(known) if known else 0) > MAX_TOTAL:
            raise ResourceExhausted(f"the coordinator's keys exceed {MAX_TOTAL} bytes; delete some")
        return Decision(True, entry, self._decide(key, entry))

    def delete(self, key: str, expected: int | None = None) -> Decision:
        """Decides a deletion; `expected` as for `put`. Not done if there is no such key."""
        known = self._decided(key)
        if known is None or expected not in (None, known.revision):
            return Decision(False, known, None)
        return Decision(True, None, self._decide(key, None))

    def since(self, prefix: str, revision: int) -> KeyChanges:
        """Returns what happened after `revision`, or everything if that is too long ago (or 0)."""
        if revision == self.revision and revision:
            return KeyChanges(revision, complete=False)
        oldest = self._history[0][0] if self._history else self.revision + 1
        if not oldest - 1 <= revision <= self.revision or revision == 0:
            return KeyChanges(self.revision, complete=True, written=self.list(prefix))
        recent = [item for item in self._history if item[0] > revision and item[1].startswith(prefix)]
        newest = {key: entry for _, key, entry in recent}
        written = tuple(entry for entry in newest.values() if entry is not None)
        deleted = tuple(key for key, entry in newest.items() if entry is None)
        return KeyChanges(self.revision, complete=False, written=written, deleted=deleted)

    def _decided(self, key: str) -> KeyEntry | None:
        pending = self._pending.get(key)
        return pending[-1] if pending else self._published.get(key)

    def _decide(self, key: str, entry: KeyEntry | None) -> Change:
        before = self._decided(key)
        growth = (_size(entry) if entry else 0) - (_size(before) if before else 0)
        self._decided_revision += 1
        revision = self._decided_revision
        self._total += growth
        self._pending.setdefault(key, []).append(entry)

        def publish() -> None:
            self._settle(key, 0)
            if entry is None:
                self._published.pop(key, None)
            else:
                self._published[key] = entry
            self.revision = revision
            self._history.append((revision, key, entry))
            for listener in self._listeners:
                listener()

        def undo() -> None:
            self._settle(key, -1)
            self._total -= growth
            if entry is not None:
                self._numbered.get(entry.writer, {}).pop(entry.sequence, None)

        writes = [Write(REVISION_KEY, b"%d" % revision), Write(KEY_PREFIX + key, encode_entry(entry))]
        if entry is not None and entry.writer and entry.sequence:
            writes.append(self._remember(entry))
        return Change(tuple(writes), publish, undo)

    def _remember(self, entry: KeyEntry) -> Write:
        numbered = self._numbered.setdefault(entry.writer, {})
        numbered[entry.sequence] = entry.revision
        if len(numbered) > REMEMBERED:
            del numbered[next(iter(numbered))]
        packed = b"".join(_NUMBERED.pack(number, revision) for number, revision in numbered.items())
        return Write(f"{WRITER_PREFIX}{entry.writer}", packed)

    def forget(self, lives: Callable[[int], bool]) -> Change | None:
        """Forgets the numbers of writers that are gone; what to store, or None."""
        gone = [writer for writer in self._numbered if not lives(writer)]
        for writer in gone:
            del self._numbered[writer]
        return Change(tuple(Write(f"{WRITER_PREFIX}{writer}", None) for writer in gone)) if gone else None

    def _settle(self, key: str, index: int) -> None:
        pending = self._pending[key]
        del pending[index]
        if not pending:
            del self._pending[key]


def encode_entry(entry: KeyEntry | None) -> bytes | None:
    """Returns an entry as it is stored: three numbers of 8 bytes, then the value."""
    if entry is None:
        return None
    numbers = (entry.revision, entry.writer, entry.sequence)
    return b"".join(number.to_bytes(8, "big") for number in numbers) + entry.value


def decode_entry(key: str, stored: bytes) -> KeyEntry:
    """Reads what `encode_entry` wrote."""
    revision, writer, sequence = (int.from_bytes(stored[at : at + 8], "big") for at in (0, 8, 16))
    return KeyEntry(key, stored[24:], revision, writer, sequence)


def _size(entry: KeyEntry) -> int:
    return len(entry.key) + len(entry.value)
