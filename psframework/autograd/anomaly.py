"""detect_anomaly: which operation's backward made a NaN, and the line of the forward that it stands for."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager
from contextvars import ContextVar, Token
from pathlib import Path
from traceback import StackSummary, walk_stack
from types import TracebackType
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from psframework import backend
from psframework.autograd.node import Node, Parts
from psframework.autograd.sparse import SparseRows
from psframework.autograd.watch import observing
from psframework.backend import Array
from psframework.errors import AutogradError

if TYPE_CHECKING:
    from psframework.autograd.traced import Traced

_HERE = f"{Path(__file__).parent}/"


class Detector:
    """What one `detect_anomaly` block knows of the nodes recorded in it."""

    def __init__(self) -> None:
        self._stacks: WeakKeyDictionary[Node, StackSummary] = WeakKeyDictionary()
        self._first: str | None = None  # where a forward first made a NaN

    def note(self, node: Node, data: Array | None) -> None:
        """A node was recorded."""
        frames = [pair for pair in walk_stack(sys._getframe()) if not _is_ours(pair[0].f_code.co_filename)]
        self._stacks[node] = StackSummary.extract(reversed(frames), lookup_lines=False)
        if self._first is None and _has_nan(data):
            self._first = f"a NaN came up first in the forward of '{node.name}'{self.trace(node)}"

    def trace(self, node: Node) -> str:
        """The traceback of the forward that recorded `node`, if that happened in the block."""
        stack = self._stacks.get(node)
        if stack is None:
            return "; its forward ran outside of detect_anomaly()"
        return "; its forward was called here (most recent call last):\n" + "".join(stack.format()).rstrip()

    def check(self, node: Node, contributions: Any) -> None:
        """The rule of `node` answered `contributions`.

        Raises:
            AutogradError: one of them holds a NaN.
        """
        for position, contribution in enumerate(contributions):
            if _has_nan(contribution):
                first = "" if self._first is None else f"\n{self._first}"
                raise AutogradError(
                    f"the backward of '{node.name}' made a NaN in the gradient of its input {position}"
                    f"{self.trace(node)}{first}"
                )

    def check_given(self, key: Node | Traced, gradient: Any) -> None:
        """All of the gradient of a node's result, or of a leaf, has come.

        Raises:
            AutogradError: it holds a NaN. No rule made it, for `check` saw what they answered.
        """
        if _has_nan(gradient):
            owner = (
                f"'{key.name}'{self.trace(key)}" if isinstance(key, Node) else f"a leaf of shape {key.shape}"
            )
            raise AutogradError(
                "a NaN came with the seed, from a hook, or from adding infinities of both signs, into the "
                f"gradient of {owner}"
            )


def _is_ours(path: str) -> bool:
    return path.startswith(_HERE)


def _has_nan(value: Any) -> bool:
    if isinstance(value, Parts):
        return any(_has_nan(gradient) for gradient in value.gradients)
    if isinstance(value, SparseRows):
        value = value.values
    if value is None or not backend.is_floating(value.dtype):
        return False
    return bool(backend.xp(value).isnan(value).any())


_current: ContextVar[Detector | None] = ContextVar("psframework_anomaly", default=None)

detector = _current.get


class detect_anomaly:
    """Find where gradients become NaN: `with detect_anomaly(): loss = ...; loss.backward()`.

    Inside the block each operation keeps the traceback of its forward, and each backward checks what every
    rule answers; the first NaN raises AutogradError, naming the operation, the input, and that traceback. It
    is slow, for looking for a mistake. Concurrent tasks are not disturbed.
    """

    def __init__(self) -> None:
        self._blocks: list[tuple[Token[Detector | None], AbstractContextManager[None]]] = []

    def __enter__(self) -> None:
        found = Detector()
        told = observing(found.note)
        told.__enter__()
        self._blocks.append((_current.set(found), told))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        token, told = self._blocks.pop()
        _current.reset(token)
        told.__exit__(None, None, None)
