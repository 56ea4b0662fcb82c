"""Names of contexts and of messages with tensors: the incarnation of whoever made them, and a counter."""

from __future__ import annotations

from typing import NamedTuple


class ContextId(NamedTuple):
    """A context: the incarnation of the process that opened it, and a counter."""

    creator: int
    counter: int

    def __str__(self) -> str:
        return f"{self.creator}.{self.counter}"


class TensorsId(NamedTuple):
    """A message with tensors: the incarnation of the process that sent it, and a counter."""

    sender: int
    counter: int

    def __str__(self) -> str:
        return f"{self.sender}.{self.counter}"
