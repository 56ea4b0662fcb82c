"""A node of the graph: one recorded operation, its edges to its inputs, and its derivative rule."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from typing import TYPE_CHECKING, Any, TypeAlias

from psframework.autograd.sparse import SparseRows
from psframework.backend import Array

if TYPE_CHECKING:
    from psframework.autograd.traced import Traced

# From the gradient of the output to those of the inputs, in order; None where there is none.
# A rule whose gradients are products of their own has a second argument, `wanted`: for each input whether its
# gradient is; by default all. `split_backward` asks for some of them first.
Rule: TypeAlias = Callable[[Array], Sequence["Array | SparseRows | None"]]
# The same for an operation with several results: a gradient for each, None for one that nothing depends on.
RuleOfMany: TypeAlias = Callable[[tuple["Array | None", ...]], Sequence["Array | SparseRows | None"]]
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


class Parts:
    """Gradients of an operation with several results, as far as they have come.

    Such an operation is one node, and each result has a light node above it, whose rule hands its gradient
    down as the part that it is. The engine adds parts as it adds arrays.
    """

    __slots__ = ("gradients",)

    def __init__(self, gradients: tuple[Array | None, ...]) -> None:
        self.gradients = gradients

    def __add__(self, other: Parts) -> Parts:
        pairs = zip(self.gradients, other.gradients)
        return Parts(tuple([b if a is None else a if b is None else a + b for a, b in pairs]))


def part_rule(index: int, count: int) -> Rule:
    """The rule of the node of result `index` of `count`."""
    before, after = (None,) * index, (None,) * (count - index - 1)

    def rule(gradient: Array) -> Any:
        return (Parts((*before, gradient, *after)),)

    return rule
