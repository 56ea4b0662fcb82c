"""A picture of the graph above a tensor: its operations, its leaves, and what each keeps for the backward."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from heapq import heappop, heappush
from html import escape
from itertools import pairwise
from os import PathLike
from pathlib import Path
from types import CellType, FunctionType
from typing import Any, cast

from psframework import backend
from psframework.autograd.function import Context
from psframework.autograd.layout import Layout, place
from psframework.autograd.node import Node
from psframework.autograd.tensor import Tensor
from psframework.backend import Array
from psframework.errors import ArgumentError

CHARACTER, LINE = 6.6, 15.0  # pixels
SMALL = ' class="small"'
_HOLDERS = (tuple, list, dict, CellType, partial, Context)  # what a rule keeps its arrays in
_STYLE = """
  text { font: 11px ui-monospace, monospace; text-anchor: middle; fill: #1f2328; }
  .small { font-size: 9px; fill: #656d76; }
  rect { fill: #fff; stroke: #8c959f; } .leaf rect { fill: #ddf4ff; stroke: #0969da; }
  .root rect { fill: #dafbe1; stroke: #1a7f37; } .freed rect { stroke-dasharray: 3 2; }
  .more rect { stroke: none; fill: none; }
  path { fill: none; stroke: #8c959f; } marker path { fill: #8c959f; stroke: none; }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3; } .small { fill: #9198a1; } rect { fill: #161b22; }
    .leaf rect { fill: #0c2d6b; } .root rect { fill: #033a16; }
  }"""


@dataclass(frozen=True)
class Drawing:
    """A picture as SVG; notebooks show it.

    Attributes:
        svg: the text of the file.
        path: where it was written, or None.
    """

    svg: str
    path: Path | None

    def _repr_svg_(self) -> str:
        return self.svg

    def __repr__(self) -> str:
        return f"<Drawing {self.path or ''}: {len(self.svg)} characters of SVG>"


@dataclass
class _Box:
    lines: list[str]
    kind: str
    title: str = ""


@dataclass
class _Boxes:
    boxes: list[_Box] = field(default_factory=list)
    edges: list[tuple[int, int]] = field(default_factory=list)
    number: dict[Any, int] = field(default_factory=dict)

    def add(self, key: Any, box: _Box) -> None:
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
        ArgumentError: a root that no graph leads to.
    """
    roots = list(root) if isinstance(root, Sequence) else [root]
    if not roots or not all(isinstance(tensor, Tensor) and tensor.requires_grad for tensor in roots):
        raise ArgumentError("draw: a root must be a tensor that requires grad: nothing else has a graph")
    pairs = names.items() if isinstance(names, Mapping) else names
    found = _walk(roots, {tensor: name for name, tensor in pairs}, max(limit, 1))
    widths = [CHARACTER * max(map(len, box.lines)) + 16 for box in found.boxes]
    svg = _svg(found, widths, place(widths, found.edges))
    target = None if path is None else Path(path)
    if target is not None:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(svg, encoding="utf-8")
    return Drawing(svg, target)


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
        for edge in key.edges:
            if edge is not None:
                visit(edge)
                pending.append((edge, key))
    if heap:
        found.add("more", _Box([f"… {len(heap)} more and what is above"], "more"))
    for source, key in dict.fromkeys(pending):
        found.edges.append((found.number.get(source, found.number.get("more", 0)), found.number[key]))
    return found


def _leaf(leaf: Tensor, name: str, root: bool) -> _Box:
    lines = [name or "leaf", f"{tuple(leaf.shape)} {backend.dtype_name(leaf.dtype)}"]
    return _Box(lines, "root" if root else "leaf", f"{type(leaf).__name__} {' '.join(lines)}")


def _operation(node: Node, root: bool) -> _Box:
    freed = node.backward is None
    kept = 0 if freed else sum(array.nbytes for array in arrays_of(node))
    lines = [node.name, *([f"keeps {_bytes(kept)}"] if kept else [])]
    title = f"{node.name}: freed by a backward" if freed else f"{node.name}: keeps {_bytes(kept)}"
    return _Box(lines, " ".join(["root"] * root + ["freed"] * freed) or "op", title)


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


def _bytes(count: int) -> str:
    size = float(count)
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.3g} {unit}"
        size /= 1024
    return f"{size:.3g} GiB"


def _svg(found: _Boxes, widths: Sequence[float], placed: Layout) -> str:
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {placed.width:.0f} {placed.height:.0f}" '
        f'width="{placed.width:.0f}" height="{placed.height:.0f}">',
        f"<style>{_STYLE}\n</style>",
        '<defs><marker id="arrow" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" markerHeight="7" '
        'orient="auto"><path d="M0 0L8 4L0 8z"/></marker></defs>',
    ]
    heights = [LINE * len(box.lines) + 10 for box in found.boxes]
    for (start, end), route in zip(found.edges, placed.routes):
        parts.append(_edge(route, heights[start] / 2, heights[end] / 2))
    for box, width, height, (x, y) in zip(found.boxes, widths, heights, placed.centres):
        lines = [
            f'<text x="{x:.1f}" y="{y + LINE * (i - (len(box.lines) - 1) / 2) + 4:.1f}"'
            f"{SMALL if i else ''}>{_text(line)}</text>"
            for i, line in enumerate(box.lines)
        ]
        parts.append(
            f'<g class="{box.kind}"><title>{_text(box.title or box.lines[0])}</title>'
            f'<rect x="{x - width / 2:.1f}" y="{y - height / 2:.1f}" width="{width:.1f}" '
            f'height="{height:.1f}" rx="6"/>{"".join(lines)}</g>'
        )
    return "\n".join([*parts, "</svg>\n"])


def _text(line: str) -> str:
    # XML has no way to write control characters.
    return escape("".join([character if character.isprintable() else "?" for character in line]))


def _edge(route: list[tuple[float, float]], above: float, below: float) -> str:
    points = [(route[0][0], route[0][1] + above), *route[1:-1], (route[-1][0], route[-1][1] - below)]
    text = f"M{points[0][0]:.1f} {points[0][1]:.1f}"
    for (x, y), (to_x, to_y) in pairwise(points):
        middle = (y + to_y) / 2
        text += f"C{x:.1f} {middle:.1f} {to_x:.1f} {middle:.1f} {to_x:.1f} {to_y:.1f}"
    return f'<path d="{text}" marker-end="url(#arrow)"/>'
