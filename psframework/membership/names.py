"""Names of members, jobs and keys: what is allowed, and which one is free."""

from __future__ import annotations

import re
from collections.abc import Container

from psframework.errors import ArgumentError

NAME = re.compile(r"[A-Za-z0-9_:.-]{1,127}")
MAX_KEY = 512  # bytes
_STEMS = {"pipeline-stage": "stage"}  # of names, where they are not the role


def check_name(name: str, what: str = "name") -> str:
    """Returns `name` if it is 1-127 of `[A-Za-z0-9_:.-]`, else raises ArgumentError.

    Args:
        name: name of a member, role, job or barrier.
        what: what it names, for the message.
    """
    if not NAME.fullmatch(name):
        raise ArgumentError(f"{what} {name[:140]!r}: use 1 to 127 of the characters A-Z a-z 0-9 _ : . -")
    return name


def check_key(key: str) -> str:
    """Returns `key` if the store can hold it: 1 to 512 bytes of UTF-8, else raises ArgumentError."""
    if not 0 < len(key.encode()) <= MAX_KEY:
        raise ArgumentError(f"key {key[:60]!r}: use 1 to {MAX_KEY} bytes")
    return key


def free_name(role: str, taken: Container[str]) -> str:
    """Returns `role-N` (`stage-N` for a pipeline-stage) with the lowest N that no live member has."""
    stem, number = _STEMS.get(role, role), 0
    while f"{stem}-{number}" in taken:
        number += 1
    return check_name(f"{stem}-{number}")
