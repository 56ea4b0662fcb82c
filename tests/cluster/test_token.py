"""Only the user who started a local cluster can read its token."""

import stat
from pathlib import Path

import pytest

from psframework.cluster.token import find_token, new_token, publish_token, read_token, write_token
from psframework.errors import ConfigurationError


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))


def test_round_trip_with_mode_0600(tmp_path: Path) -> None:
    token = new_token()
    write_token(tmp_path / "token", token)
    assert read_token(tmp_path / "token") == token
    assert stat.S_IMODE((tmp_path / "token").stat().st_mode) == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["token"]
    assert new_token() != token


def test_published_tokens_are_found_on_loopback_only() -> None:
    path = publish_token("127.0.0.1:4711", "secret")
    assert find_token(["127.0.0.1:4711"]) == "secret"
    assert find_token(["localhost:4711"]) == "secret"
    assert find_token(["127.0.0.1:4712"]) is None
    assert find_token(["10.0.0.1:4711"]) is None, "the token must not travel to another host"
    path.unlink()
    assert find_token(["127.0.0.1:4711"]) is None


def test_a_folder_that_others_can_write_is_not_trusted(tmp_path: Path) -> None:
    publish_token("127.0.0.1:4711", "secret")
    (tmp_path / "psframework").chmod(0o777)
    assert find_token(["127.0.0.1:4711"]) is None
    with pytest.raises(ConfigurationError, match="0700"):
        publish_token("127.0.0.1:4711", "secret")


@pytest.mark.parametrize(
    ("content", "mode", "words"),
    [("x", 0o644, "chmod 600"), ("\n", 0o600, "empty"), (None, 0o600, "can't read")],
)
def test_bad_token_files(tmp_path: Path, content: str | None, mode: int, words: str) -> None:
    path = tmp_path / "token"
    if content is not None:
        path.write_text(content)
        path.chmod(mode)
    with pytest.raises(ConfigurationError, match=words):
        read_token(path)
