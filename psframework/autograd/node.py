"""A node of the graph: one recorded operation, its edges to its inputs, and its derivative rule."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from typing import TYPE_CHECKING, Any, TypeAlias

from psframework.backend import Array

if TYPE_CHECKING:
    from psframework.autograd.traced import Traced

# From the gradient of the output to those of the inputs, in order; None where there is none.
Rule: TypeAlias = Callable[[Array], Sequence["Array | None"]]
Edge: TypeAlias = "Node | Traced | None"
# Shared by all tensors over one piece of memory: its first item counts changes in place, and a second item
# says that views of that memory exist.
Version: TypeAlias = list[int]

next_order = count(1).__next__


class Node:
    """One recorded operation. It holds no tensor that it made, so a graph has no reference cycles.

    Attributes:
        name: of the operation, for messages.
        backward: the rule; None once it ran without `retain_graph` (which frees the arrays it holds).
        edges: for each input the node that made it, the tensor itself if it is a leaf, None for a constant.
        saved: (version, its count when the operation ran) of each array that the rule holds.
        order: a node has a higher number than its inputs, so descending numbers are a topological order.
        hooks: called with the gradient of the output; each may return another one.
    """

    __slots__ = ("__weakref__", "backward", "edges", "hooks", "name", "order", "saved")

    def __init__(
        self, name: str, backward: Rule, edges: tuple[Edge, ...], saved: tuple[tuple[Version, int], ...]
    ) -> None:
        self.name = name
        self.backward: Rule | None = backward
        self.edges = edges
        self.saved = saved
        self.order = next_order()
        self.hooks: list[Callable[[Array], Any]] | None = None

    def __repr__(self) -> str:
        return f"<Node {self.name}>"
