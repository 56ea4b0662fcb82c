"""What the coordinator must not forget: a small ordered store of bytes, embedded or in memory.

The coordinator is the store's only user while it runs, reads it once at its start, and afterwards only
writes; so a store needs few methods, and another one (etcd) is easily added.
"""

from __future__ import annotations

import os
import re
import sqlite3
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from psframework.errors import ConfigurationError, ResourceExhausted

TERM_KEY = "meta/term"
SQLITE_MAGIC = b"SQLite format 3\x00"
APPLICATION_ID = 0x70736601  # in the file's header: ours, layout 1
LOCK_TIMEOUT = 1.0  # seconds; a predecessor that was just killed still holds its lock for a moment
# Their locks and their fsync can't be trusted with the one copy of the truth.
NETWORK_FILE_SYSTEMS = frozenset(
    {"nfs", "nfs4", "cifs", "smb2", "smb3", "smbfs", "afs", "coda", "ceph", "glusterfs", "lustre", "gpfs"}
    | {"beegfs", "pvfs2", "orangefs", "ocfs2", "gfs2", "davfs", "fuse.sshfs", "fuse.s3fs", "fuse.gcsfuse"}
    | {"fuse.rclone", "fuse.davfs2", "fuse.glusterfs", "fuse.ceph"}
)


@dataclass(frozen=True, slots=True)
class Write:
    """One write: `value` None deletes the key."""

    key: str
    value: bytes | None


def _nothing() -> None:
    pass


@dataclass(frozen=True, slots=True)
class Change:
    """Decided in memory, to be stored before anybody hears of it.

    Args:
        writes: what makes it durable.
        publish: called once it is.
        undo: called instead if the store failed, newest change first.
    """

    writes: tuple[Write, ...]
    publish: Callable[[], None] = _nothing
    undo: Callable[[], None] = _nothing


class Store(Protocol):
    """Durable bytes by key, with one owner at a time."""

    def open(self) -> int:
        """Takes exclusive possession and raises the term, durably; returns the new term."""

    def items(self, prefix: str) -> list[tuple[str, bytes]]:
        """Returns all (key, value) whose key begins with `prefix`, in the order of the keys."""

    def commit(self, writes: Iterable[Write]) -> None:
        """Makes all the writes durable, or none. May be called in another thread than `open`."""

    def close(self) -> None:
        """Gives up possession. Idempotent."""


class MemoryStore:
    """A store that lasts as long as the object; opening it again is a restart of the coordinator."""

    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}
        self.commits = 0

    def open(self) -> int:
        term = int(self._values.get(TERM_KEY, b"0")) + 1
        self._values[TERM_KEY] = b"%d" % term
        return term

    def items(self, prefix: str) -> list[tuple[str, bytes]]:
        return sorted(item for item in self._values.items() if item[0].startswith(prefix))

    def commit(self, writes: Iterable[Write]) -> None:
        self.commits += 1
        for write in writes:
            if write.value is None:
                self._values.pop(write.key, None)
            else:
                self._values[write.key] = write.value

    def close(self) -> None:
        pass


class SqliteStore:
    """A store in one SQLite file: WAL, synchronous=FULL, locked for this process alone.

    Args:
        path: the file; its directory must exist, and not be on a network file system.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)
        self._db: sqlite3.Connection | None = None

    def open(self) -> int:
        """Opens the file and raises the term.

        Raises:
            ConfigurationError: another coordinator has it, it is on a network file system, or not a store.
        """
        refuse_network_file_system(self._path)
        try:
            _refuse_other_file(self._path)
            self._db = sqlite3.connect(
                self._path, timeout=LOCK_TIMEOUT, isolation_level=None, check_same_thread=False
            )
            return self._take_possession(self._db)
        except (sqlite3.Error, OSError) as error:
            self.close()
            if "locked" in str(error):
                raise ConfigurationError(
                    f"{self._path}: another coordinator uses this store; stop it, or give this one another"
                ) from error
            raise ConfigurationError(f"{self._path}: can't be used as a store: {error}") from error

    def _take_possession(self, db: sqlite3.Connection) -> int:
        db.execute("PRAGMA locking_mode=EXCLUSIVE")
        (owner,) = db.execute("PRAGMA application_id").fetchone()
        (objects,) = db.execute("SELECT count(*) FROM sqlite_master").fetchone()
        if objects and owner != APPLICATION_ID:
            raise sqlite3.DatabaseError("a database of another program")
        db.execute("PRAGMA journal_mode=WAL")
        db.execute("PRAGMA synchronous=FULL")
        db.execute("BEGIN EXCLUSIVE")
        db.execute(
            "CREATE TABLE IF NOT EXISTS entries (key TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID"
        )
        db.execute(f"PRAGMA application_id={APPLICATION_ID}")
        row = db.execute("SELECT value FROM entries WHERE key = ?", (TERM_KEY,)).fetchone()
        term = int(row[0]) + 1 if row else 1
        db.execute("INSERT OR REPLACE INTO entries VALUES (?, ?)", (TERM_KEY, b"%d" % term))
        db.execute("COMMIT")
        return term

    def items(self, prefix: str) -> list[tuple[str, bytes]]:
        rows = self._opened().execute(
            "SELECT key, value FROM entries WHERE substr(key, 1, ?) = ? ORDER BY key", (len(prefix), prefix)
        )
        return [(key, bytes(value)) for key, value in rows]

    def commit(self, writes: Iterable[Write]) -> None:
        """Makes all the writes durable, or none.

        Raises:
            ResourceExhausted: the disk is full or broken; nothing was written.
        """
        db = self._opened()
        try:
            db.execute("BEGIN IMMEDIATE")
            for write in writes:
                if write.value is None:
                    db.execute("DELETE FROM entries WHERE key = ?", (write.key,))
                else:
                    db.execute("INSERT OR REPLACE INTO entries VALUES (?, ?)", (write.key, write.value))
            db.execute("COMMIT")
        except sqlite3.Error as error:
            if db.in_transaction:
                db.execute("ROLLBACK")
            raise ResourceExhausted(
                f"{self._path}: the store can't be written: {error}", retry_after=1.0
            ) from error

    def close(self) -> None:
        if self._db is not None:
            self._db.close()
            self._db = None

    def _opened(self) -> sqlite3.Connection:
        if self._db is None:
            raise ConfigurationError(f"{self._path}: the store is not open")
        return self._db


def _refuse_other_file(path: Path) -> None:
    """SQLite would overwrite a short file that is no database."""
    if path.exists():
        with path.open("rb") as file:
            head = file.read(len(SQLITE_MAGIC))
        if head not in (b"", SQLITE_MAGIC):
            raise sqlite3.DatabaseError("not a database")


def refuse_network_file_system(path: Path, mounts: Path = Path("/proc/mounts")) -> None:
    """Raises ConfigurationError if `path` lies on a network file system."""
    try:
        lines = mounts.read_text().splitlines()
    except OSError:
        return
    kind = _file_system(str(path.resolve()), [line.split() for line in lines])
    if kind in NETWORK_FILE_SYSTEMS:
        raise ConfigurationError(
            f"{path}: is on a network file system ({kind}), whose locks can't be trusted; use a local disk"
        )


def _file_system(path: str, mounts: Sequence[Sequence[str]]) -> str:
    """Type of the file system with the longest mount point above `path`; of several on one, the last."""
    best, kind = "", ""
    for _, point, name, *_ in mounts:
        point = re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), point)  # a blank is \040
        inside = point == "/" or path == point or path.startswith(point + "/")
        if inside and len(point) >= len(best):
            best, kind = point, name
    return kind
