"""The store: terms, atomic writes, one owner, and no network file systems."""

import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from psframework.errors import ConfigurationError, ResourceExhausted
from psframework.membership.store import (
    NETWORK_FILE_SYSTEMS,
    MemoryStore,
    SqliteStore,
    Store,
    Write,
    refuse_network_file_system,
)

Reopen = Callable[[], Store]


@pytest.fixture(params=["memory", "sqlite"])
def reopen(request: pytest.FixtureRequest, tmp_path: Path) -> Reopen:
    memory = MemoryStore()
    return lambda: memory if request.param == "memory" else SqliteStore(tmp_path / "store.db")


def test_term_rises_with_each_start(reopen: Reopen) -> None:
    for term in (1, 2, 3):
        store = reopen()
        assert store.open() == term
        store.close()


def test_what_was_committed_is_there_after_a_restart(reopen: Reopen) -> None:
    store = reopen()
    store.open()
    store.commit([Write("a/2", b"two"), Write("a/1", b"\x00\xff"), Write("b", b""), Write("c", b"x")])
    store.commit([Write("c", None), Write("a/2", b"2"), Write("never", None)])
    store.close()
    store.close()
    store = reopen()
    store.open()
    assert store.items("a/") == [("a/1", b"\x00\xff"), ("a/2", b"2")]
    assert store.items("b") == [("b", b"")] and store.items("c") == []
    assert store.items("%") == [] and store.items("a_") == []
    store.close()


def test_a_second_coordinator_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("psframework.membership.store.LOCK_TIMEOUT", 0.05)
    first = SqliteStore(tmp_path / "store.db")
    first.open()
    with pytest.raises(ConfigurationError, match="another coordinator"):
        SqliteStore(tmp_path / "store.db").open()
    first.commit([Write("a", b"undisturbed")])
    first.close()
    second = SqliteStore(tmp_path / "store.db")
    assert second.open() == 2
    assert second.items("a") == [("a", b"undisturbed")]
    second.close()


def test_settings_that_make_it_durable(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "store.db")
    store.open()
    assert store._db is not None
    assert store._db.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert store._db.execute("PRAGMA synchronous").fetchone() == (2,)
    assert store._db.execute("PRAGMA locking_mode").fetchone() == ("exclusive",)
    store.close()


@pytest.mark.parametrize("content", [b"not a database, but long enough to be looked at " * 50, b"x"])
def test_another_file_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "notes.txt"
    path.write_bytes(content)
    with pytest.raises(ConfigurationError, match=r"notes\.txt: can't be used as a store"):
        SqliteStore(path).open()
    assert path.read_bytes() == content


def test_a_database_of_somebody_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    other = sqlite3.connect(path)
    other.execute("CREATE TABLE mine (x)")
    other.commit()
    other.close()
    with pytest.raises(ConfigurationError, match="of another program"):
        SqliteStore(path).open()
    other = sqlite3.connect(path)
    assert other.execute("SELECT name FROM sqlite_master").fetchall() == [("mine",)]
    other.close()


def test_a_directory_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="can't be used as a store"):
        SqliteStore(tmp_path / "missing" / "store.db").open()


def test_a_failed_commit_writes_nothing_and_the_next_one_works(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "store.db")
    store.open()
    assert store._db is not None
    pages = store._db.execute("PRAGMA page_count").fetchone()[0]
    store._db.execute(f"PRAGMA max_page_count={pages + 2}")  # a disk with room for two pages
    with pytest.raises(ResourceExhausted, match="full") as caught:
        store.commit([Write("small", b"1"), Write("big", bytes(100_000))])
    assert caught.value.retry_after > 0
    assert store.items("small") == []
    store.commit([Write("small", b"2")])
    assert store.items("") == [("meta/term", b"1"), ("small", b"2")]
    store.close()


def test_a_closed_store_says_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="not open"):
        SqliteStore(tmp_path / "s.db").items("")


MOUNTS = r"""
/dev/vda / ext4 rw 0 0
server:/export /mnt/nfs nfs4 rw 0 0
/dev/vdb /mnt/nfs/local ext4 rw 0 0
server:/b /mnt/with\040blank cifs rw 0 0
user@host: /mnt/ssh fuse.sshfs rw 0 0
tmpfs /mnt/over tmpfs rw 0 0
server:/c /mnt/over nfs rw 0 0
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/home/me/store.db", None),
        ("/mnt/nfs/store.db", "nfs4"),
        ("/mnt/nfs/local/store.db", None),
        ("/mnt/nfsx/store.db", None),
        ("/mnt/with blank/store.db", "cifs"),
        ("/mnt/ssh/a/store.db", "fuse.sshfs"),
        ("/mnt/over/store.db", "nfs"),
    ],
)
def test_network_file_systems_are_refused(tmp_path: Path, path: str, kind: str | None) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(MOUNTS.lstrip())
    if kind is None:
        refuse_network_file_system(Path(path), mounts)
    else:
        with pytest.raises(ConfigurationError, match=f"network file system \\({kind}\\)"):
            refuse_network_file_system(Path(path), mounts)


def test_unknown_mounts_are_no_reason_to_refuse(tmp_path: Path) -> None:
    refuse_network_file_system(tmp_path / "s.db", tmp_path / "no-such-file")
    assert "ext4" not in NETWORK_FILE_SYSTEMS


def test_a_crash_in_the_middle_of_a_commit_leaves_the_last_one(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "store.db")
    store.open()
    store.commit([Write("a", b"1")])
    wal = (tmp_path / "store.db-wal").read_bytes()
    store.commit([Write("a", b"2"), Write("b", b"2")])
    whole = (tmp_path / "store.db-wal").read_bytes()
    main = (tmp_path / "store.db").read_bytes()
    store.close()
    crashed = tmp_path / "crashed.db"
    crashed.write_bytes(main)
    cut = len(wal) + (len(whole) - len(wal)) // 2
    (tmp_path / "crashed.db-wal").write_bytes(whole[:cut])
    again = SqliteStore(crashed)
    again.open()
    assert again.items("a") == [("a", b"1")] and again.items("b") == []
    again.close()
    assert sqlite3.connect(crashed).execute("PRAGMA integrity_check").fetchone() == ("ok",)
