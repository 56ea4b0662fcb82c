"""Only the user who started a local cluster can read its token."""

import stat
from pathlib import Path

import pytest

from psframework.cluster.token import find_token, publish_token, withdraw_token
from psframework.errors import ConfigurationError


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))


def test_published_tokens_are_found_on_loopback_only() -> None:
    path = publish_token("127.0.0.1:4711", "secret")
    assert find_token(["127.0.0.1:4711"]) == "secret"
    assert find_token(["localhost:4711"]) == "secret"
    assert find_token(["127.0.0.1:4712"]) is None
    assert find_token(["10.0.0.1:4711"]) is None, "the token must not travel to another host"
    withdraw_token(path)
    assert not path.parent.exists()
    assert find_token(["127.0.0.1:4711"]) is None


def test_a_folder_that_others_can_write_is_not_trusted(tmp_path: Path) -> None:
    publish_token("127.0.0.1:4711", "secret")
    (tmp_path / "psframework").chmod(0o777)
    assert find_token(["127.0.0.1:4711"]) is None
    with pytest.raises(ConfigurationError, match="0700"):
        publish_token("127.0.0.1:4711", "secret")


def test_the_file_is_private_and_replaced_when_the_port_is_used_again(tmp_path: Path) -> None:
    publish_token("127.0.0.1:4711", "old")
    path = publish_token("127.0.0.1:4711", "new")
    assert find_token(["127.0.0.1:4711"]) == "new"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [file.name for file in path.parent.iterdir()] == ["4711.token"]
