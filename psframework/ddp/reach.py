"""What a backward will do to the parameters, found before it runs: one walk over its graph. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from psframework.autograd.engine import FREED, Key
from psframework.autograd.node import Node
from psframework.errors import AutogradError

if TYPE_CHECKING:
    from psframework.autograd.traced import Traced

AT_ONCE: Final = 1 << 62
"""The order of a parameter that is a root of the backward: its gradient is there before anything runs."""


class Reach(NamedTuple):
    """What a backward gets to.

    Attributes:
        lowest: for each parameter the order of the oldest node that passes a gradient to it: once that has
            run, the gradient is final. 0 for one that no gradient comes to.
        others: leaves that are no parameters, such as an input that requires grad.
    """

    lowest: list[int]
    others: list[Traced]


def reach(keys: Iterable[Key], index: Mapping[Any, int]) -> Reach:
    """Walks the graph below `keys`, each node once.

    Args:
        keys: what the backward begins at: the nodes of its roots; or leaves, if a root is one.
        index: the number of each parameter, 0, 1, 2, ...

    Raises:
        AutogradError: part of the graph was freed by an earlier backward.
    """
    lowest = [0] * len(index)
    others: dict[Traced, None] = {}
    stack: list[Node] = []
    for key in keys:
        if isinstance(key, Node):
            stack.append(key)
        elif key in index:
            lowest[index[key]] = AT_ONCE
        else:
            others[key] = None
    seen = set(stack)
    while stack:
        node = stack.pop()
        if node.backward is None:
            raise AutogradError(FREED.format(node.name))
        order = node.order
        for edge in node.edges:
            if edge is None:
                continue
            if isinstance(edge, Node):
                if edge not in seen:
                    seen.add(edge)
                    stack.append(edge)
            elif (number := index.get(edge)) is None:
                others[edge] = None
            elif not lowest[number] or order < lowest[number]:
                lowest[number] = order
    return Reach(lowest, list(others))


def ready_order(lowest: Sequence[int]) -> list[int]:
    """The parameters in the order in which their gradients become final; those that get none come last.

    Parameters that become final at the same time come in reverse order of registration, as at first.
    """
    return sorted(range(len(lowest)), key=lambda number: (-lowest[number], -number))
