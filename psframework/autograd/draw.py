"""A picture of the graph above a tensor: its operations, its leaves, and what each keeps for the backward."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from heapq import heappop, heappush
from os import PathLike
from types import CellType, FunctionType
from typing import Any, cast

from psframework import backend
from psframework.autograd.function import Context
from psframework.autograd.layout import place
from psframework.autograd.node import Node
from psframework.autograd.picture import Box, Drawing, edge, page, save, size
from psframework.autograd.tensor import Tensor
from psframework.backend import Array
from psframework.errors import ArgumentError

_HOLDERS = (tuple, list, dict, CellType, partial, Context)  # what a rule keeps its arrays in


@dataclass
class _Boxes:
    boxes: list[Box] = field(default_factory=list)
    edges: list[tuple[int, int]] = field(default_factory=list)
    number: dict[Any, int] = field(default_factory=dict)

    def add(self, key: Any, box: Box) -> None:
        self.number[key] = len(self.boxes)
        self.boxes.append(box)


def draw(
    root: Tensor | Sequence[Tensor],
    path: str | PathLike[str] | None = "graph.svg",
    *,
    names: Mapping[str, Tensor] | Iterable[tuple[str, Tensor]] = (),
    limit: int = 400,
) -> Drawing:
    """Draw the graph that a backward from `root` would go through.

    Leaves (blue) are on top, the root (green) at the bottom; data flows down, gradients flow up. An operation
    shows how many bytes it keeps for its backward; dashed are those that a backward has freed.

    Args:
        root: a tensor that requires grad, or several.
        path: the SVG file to write; None writes none.
        names: of leaves: `model.named_parameters()`, or {"x": x}.
        limit: operations and leaves to draw at most; of a larger graph the part nearest to the root is drawn.

    Returns:
        The drawing.

    Raises:
        ArgumentError: a root that no graph leads to, or a path that ends in another suffix than .svg.
    """
    roots = list(root) if isinstance(root, Sequence) else [root]
    if not roots or not all(isinstance(tensor, Tensor) and tensor.requires_grad for tensor in roots):
        raise ArgumentError("draw: a root must be a tensor that requires grad: nothing else has a graph")
    pairs = names.items() if isinstance(names, Mapping) else names
    found = _walk(roots, {tensor: name for name, tensor in pairs}, max(limit, 1))
    return save(_svg(found), path)


def _walk(roots: Sequence[Tensor], names: Mapping[Tensor, str], limit: int) -> _Boxes:
    """Boxes for the newest `limit` nodes, in the order in which a backward would visit them."""
    found = _Boxes()
    heap: list[tuple[int, int, Node | Tensor]] = []
    pending: list[tuple[Any, Any]] = []
    seen: set[Any] = set()

    def visit(key: Any) -> None:
        if key not in seen:
            seen.add(key)
            heappush(heap, (-key.order if isinstance(key, Node) else 0, len(seen), key))

    for tensor in roots:
        visit(tensor._node or tensor)
    tops = set(seen)
    while heap and len(found.boxes) < limit:
        key = heappop(heap)[2]
        if not isinstance(key, Node):
            found.add(key, _leaf(key, names.get(key, ""), key in tops))
            continue
        found.add(key, _operation(key, key in tops))
        for source in key.edges:
            if source is not None:
                visit(source)
                pending.append((source, key))
    if heap:
        found.add("more", Box([f"… {len(heap)} more and what is above"], "more"))
    for source, key in dict.fromkeys(pending):
        found.edges.append((found.number.get(source, found.number.get("more", 0)), found.number[key]))
    return found


def _leaf(leaf: Tensor, name: str, root: bool) -> Box:
    lines = [name or "leaf", f"{tuple(leaf.shape)} {backend.dtype_name(leaf.dtype)}"]
    return Box(lines, "root" if root else "leaf", f"{type(leaf).__name__} {' '.join(lines)}")


def _operation(node: Node, root: bool) -> Box:
    freed = node.backward is None
    kept = 0 if freed else sum(array.nbytes for array in arrays_of(node))
    lines = [node.name, *([f"keeps {size(kept)}"] if kept else [])]
    title = f"{node.name}: freed by a backward" if freed else f"{node.name}: keeps {size(kept)}"
    return Box(lines, " ".join(["root"] * root + ["freed"] * freed) or "op", title)


def arrays_of(node: Node) -> list[Array]:
    """The arrays that a node's rule refers to, itself or through what it closes over."""
    found, seen, stack = list[Array](), set[int](), [cast(object, node.backward)]
    while stack:
        item = stack.pop()
        if isinstance(item, Tensor):
            item = item._data
        if id(item) in seen:
            continue
        seen.add(id(item))
        if backend.is_array(item):
            found.append(cast(Array, item))
        elif isinstance(item, FunctionType):
            stack.extend(item.__closure__ or ())
        elif isinstance(item, _HOLDERS):
            stack.extend(gc.get_referents(item))
    return found


def _svg(found: _Boxes) -> str:
    boxes = found.boxes
    placed = place([box.width for box in boxes], found.edges)
    edges = [edge(route, boxes[start], boxes[end]) for (start, end), route in zip(found.edges, placed.routes)]
    parts = [*edges, *[box.at(x, y) for box, (x, y) in zip(boxes, placed.centres)]]
    return page(placed.width, placed.height, parts)
