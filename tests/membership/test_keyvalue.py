"""Keys: revisions, compare-and-set, repeated writes, watchers; checked against a plain model."""

import random

import pytest

from psframework.errors import ArgumentError, ResourceExhausted
from psframework.membership import keyvalue
from psframework.membership.keyvalue import (
    HISTORY,
    REMEMBERED,
    WRITER_PREFIX,
    KeyChanges,
    KeyEntry,
    KeyTable,
    decode_entry,
    encode_entry,
)
from psframework.membership.store import Change, Write


def do(change: Change | None) -> None:
    assert change is not None
    change.publish()


def test_nothing_is_seen_before_it_is_published() -> None:
    table = KeyTable()
    decision = table.put("a", b"1")
    assert decision.done and table.get("a") is None and table.revision == 0
    do(decision.change)
    assert table.get("a") == KeyEntry("a", b"1", 1) == decision.entry
    deletion = table.delete("a")
    assert deletion.done and table.get("a") is not None
    do(deletion.change)
    assert table.get("a") is None and table.revision == 2


def test_compare_and_set() -> None:
    table = KeyTable()
    assert not table.put("a", b"x", expected=5).done
    created = table.put("a", b"1", expected=0)
    assert created.done
    assert not table.put("a", b"2", expected=0).done  # already decided, though not yet durable
    do(created.change)
    lost = table.put("a", b"2", expected=9)
    assert not lost.done and lost.change is None and lost.entry == KeyEntry("a", b"1", 1)
    do(table.put("a", b"2", expected=1).change)
    assert not table.delete("a", 1).done
    do(table.delete("a", 2).change)
    assert not table.delete("a").done
    do(table.put("a", b"2", expected=0).change)
    assert table.get("a") == KeyEntry("a", b"2", 4)  # revisions are never used again


def test_a_repeated_write_is_done_once() -> None:
    table = KeyTable()
    do(table.put("a", b"1", expected=0, writer=7, sequence=3).change)
    again = table.put("a", b"1", expected=0, writer=7, sequence=3)
    assert again.done and again.change is None and again.entry == KeyEntry("a", b"1", 1, 7, 3)
    assert not table.put("a", b"1", expected=0, writer=7, sequence=4).done
    assert not table.put("a", b"1", expected=0, writer=8, sequence=3).done


def test_undo_takes_back_what_was_decided() -> None:
    table = KeyTable()
    do(table.put("a", b"1").change)
    changes = [table.put("a", b"2").change, table.delete("a").change, table.put("a", b"3").change]
    for change in reversed(changes):
        assert change is not None
        change.undo()
    assert table.get("a") == KeyEntry("a", b"1", 1)
    assert table.put("a", b"4", expected=1).entry == KeyEntry("a", b"4", 5)


def test_limits() -> None:
    table = KeyTable()
    with pytest.raises(ArgumentError, match="at most 1048576"):
        table.put("a", bytes(2**20 + 1))
    with pytest.raises(ArgumentError):
        table.put("", b"")


def test_the_whole_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keyvalue, "MAX_TOTAL", 100)
    table = KeyTable()
    do(table.put("a", bytes(60)).change)
    with pytest.raises(ResourceExhausted, match="exceed 100"):
        table.put("b", bytes(60))
    do(table.put("a", bytes(90)).change)  # the new value replaces the old
    do(table.delete("a").change)
    do(table.put("b", bytes(60)).change)


def apply(known: dict[str, bytes], changes: KeyChanges) -> None:
    if changes.complete:
        known.clear()
    known.update((entry.key, entry.value) for entry in changes.written)
    for key in changes.deleted:
        known.pop(key, None)


@pytest.mark.parametrize("seed", range(5))
def test_watchers_at_any_revision_catch_up(seed: int) -> None:
    rng, table, model = random.Random(seed), KeyTable(), {}
    watchers: list[tuple[int, dict[str, bytes]]] = [(0, {})]
    for step in range(300):
        key = rng.choice(["a/1", "a/2", "b/1"])
        if rng.random() < 0.3:
            decision = table.delete(key)
            model.pop(key, None)
        else:
            decision = table.put(key, b"%d" % step)
            model[key] = b"%d" % step
        if decision.change is not None:
            decision.change.publish()
        watchers.append((table.revision, {k: v for k, v in model.items() if k.startswith("a/")}))
    expected = {k: v for k, v in model.items() if k.startswith("a/")}
    assert {entry.key: entry.value for entry in table.list("a/")} == expected
    for revision, known in watchers:
        changes = table.since("a/", revision)
        apply(known, changes)
        assert known == expected and changes.revision == table.revision


def test_a_watcher_too_far_behind_begins_anew() -> None:
    table = KeyTable()
    for number in range(HISTORY + 5):
        do(table.put("a", b"%d" % number).change)
    assert table.since("", 2).complete
    assert not table.since("", 10).complete
    assert table.since("", 10**9).complete  # of another history


def test_after_a_restart_a_watcher_goes_on_or_begins_anew() -> None:
    table = KeyTable()
    table.load([KeyEntry("a", b"1", 3)], 5)
    assert table.since("", 5) == KeyChanges(5, complete=False)
    assert table.since("", 4).complete and table.since("", 0).complete
    do(table.put("b", b"").change)
    assert table.since("", 5).written == (KeyEntry("b", b"", 6),)


def test_entries_are_stored_whole() -> None:
    entry = KeyEntry("k", b"\x00value", 2**40, 7, 9)
    stored = encode_entry(entry)
    assert stored is not None and decode_entry("k", stored) == entry
    assert encode_entry(None) is None


def test_a_repeated_write_is_told_of_the_first_whatever_others_wrote_since() -> None:
    table, stored = KeyTable(), {}

    def store(change: Change | None) -> None:
        do(change)
        assert change is not None
        stored.update((write.key, write.value) for write in change.writes)

    store(table.put("n", b"1", expected=0, writer=7, sequence=1).change)
    store(table.put("n", b"2", expected=1, writer=8, sequence=1).change)
    restarted = KeyTable()
    records = [(key, value) for key, value in stored.items() if key.startswith(WRITER_PREFIX)]
    restarted.load([decode_entry("n", stored["key/n"])], 2, records)
    for each in (table, restarted):
        again = each.put("n", b"1", expected=0, writer=7, sequence=1)
        assert again.done and again.change is None and again.entry == KeyEntry("n", b"1", 1, 7, 1)
        assert each.get("n") == KeyEntry("n", b"2", 2, 8, 1)
    gone = restarted.forget(lambda writer: writer == 8)
    assert gone is not None and gone.writes == (Write(WRITER_PREFIX + "7", None),)
    assert restarted.forget(lambda writer: writer == 8) is None
    assert not restarted.put("n", b"1", expected=0, writer=7, sequence=1).done


def test_an_undone_write_is_not_remembered_and_few_are() -> None:
    table = KeyTable()
    failed = table.put("a", b"1", writer=7, sequence=1).change
    assert failed is not None
    failed.undo()
    assert table.put("a", b"1", writer=7, sequence=1).change is not None
    for number in range(2, REMEMBERED + 2):
        do(table.put("b", b"", writer=7, sequence=number).change)
    assert table.put("b", b"", writer=7, sequence=2).change is None
    assert table.put("a", b"1", writer=7, sequence=1).change is not None
