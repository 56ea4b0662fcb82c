"""The tuning table of a user: where it is looked for, and what is said of one that is none."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from psframework.cluster.process import child_environment
from psframework.collective.tuning import Table
from psframework.collective.tuning_file import load, location, save
from psframework.errors import ConfigurationError

TABLE = Table({2: 1000, 8: 100}, ring_from=9)


def test_where_it_lies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/somebody")
    assert location({}) == Path("/home/somebody/.config/psframework/tuning.json")
    assert location({"XDG_CONFIG_HOME": "/c"}) == Path("/c/psframework/tuning.json")
    assert location({"XDG_CONFIG_HOME": "/c", "PSF_TUNING": "t.json"}) == Path("t.json")
    assert location({"XDG_CONFIG_HOME": "/c", "PSF_TUNING": "built-in"}) == Path("/c/psframework/tuning.json")


def test_what_was_saved_is_loaded(tmp_path: Path) -> None:
    environment = {"XDG_CONFIG_HOME": str(tmp_path)}
    assert load(environment) == Table()  # nobody has made one
    save(TABLE, location(environment))
    assert load(environment) == TABLE
    assert load({"PSF_TUNING": str(location(environment))}) == TABLE
    assert load(environment | {"PSF_TUNING": "built-in"}) == Table()
    save(Table(), location(environment))
    assert load(environment) == Table()
    assert [each.name for each in tmp_path.rglob("*.json*")] == ["tuning.json"]  # no scratch is left


def test_a_file_that_was_named_must_be_there(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    with pytest.raises(ConfigurationError, match=rf"tuning table {path} \(PSF_TUNING\): .*No such file"):
        load({"PSF_TUNING": str(path)})


@pytest.mark.parametrize(
    ("content", "wrong"),
    [
        (b"{", "Expecting property name"),
        (b"\xff", "can't decode"),
        (json.dumps({"version": 1, "whole": {"4": "x"}}).encode(), "'whole' of 4 ranks is 'x'"),
    ],
)
def test_what_is_no_table_is_named_with_what_is_wrong(tmp_path: Path, content: bytes, wrong: str) -> None:
    path = tmp_path / "psframework" / "tuning.json"
    path.parent.mkdir()
    path.write_bytes(content)
    with pytest.raises(ConfigurationError) as caught:
        load({"XDG_CONFIG_HOME": str(tmp_path)})
    assert str(path) in str(caught.value)
    assert wrong in str(caught.value)


def test_what_can_not_be_written_leaves_the_old_one(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match=r"file/tuning\.json can't be written"):
        save(TABLE, tmp_path / "file" / "tuning.json")
    (tmp_path / "folder").mkdir()
    with pytest.raises(ConfigurationError, match="folder can't be written"):
        save(TABLE, tmp_path / "folder")
    assert sorted(os.listdir(tmp_path)) == ["file", "folder"]


def test_processes_of_a_local_cluster_have_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PSF_TUNING", "somewhere.json")
    assert child_environment()["PSF_TUNING"] == "somewhere.json"
