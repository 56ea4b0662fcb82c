"""RANK and WORLD_SIZE are believed only if they can be right."""

import pytest

from psframework.errors import ConfigurationError
from psframework.rpc.world import own_rank, world_size


def told(monkeypatch: pytest.MonkeyPatch, rank: str | None, size: str | None) -> None:
    for name, value in (("RANK", rank), ("WORLD_SIZE", size)):
        if value is None:
            monkeypatch.delenv(name, raising=False)
        else:
            monkeypatch.setenv(name, value)


@pytest.mark.parametrize(
    ("rank", "size", "expected"),
    [
        ("0", "1", (0, 1)),
        ("3", "4", (3, 4)),
        (None, None, (None, None)),
        ("", "", (None, None)),
        ("5", None, (5, None)),
    ],
)
def test_what_it_was_told(
    monkeypatch: pytest.MonkeyPatch,
    rank: str | None,
    size: str | None,
    expected: tuple[int | None, int | None],
) -> None:
    told(monkeypatch, rank, size)
    assert (own_rank(), world_size()) == expected


@pytest.mark.parametrize(
    ("rank", "size", "words"),
    [
        ("4", "4", "RANK=4 with WORLD_SIZE=4: ranks go from 0 to 3"),
        ("-1", "4", "RANK='-1': a number from 0 on"),
        ("0", "0", "WORLD_SIZE='0': a number from 1 on"),
        ("0", "many", "WORLD_SIZE='many'"),
    ],
)
def test_what_can_not_be(monkeypatch: pytest.MonkeyPatch, rank: str, size: str, words: str) -> None:
    told(monkeypatch, rank, size)
    with pytest.raises(ConfigurationError, match=words):
        own_rank()
