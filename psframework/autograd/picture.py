"""Pictures of graphs as SVG: what all of them are made of."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from os import PathLike
from pathlib import Path

from psframework.errors import ArgumentError

CHARACTER, LINE = 6.6, 15.0  # pixels
STYLE = """
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
_SMALL = ' class="small"'


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
class Box:
    """What stands for something in the graph.

    Attributes:
        lines: its text; all but the first are small.
        kind: classes that decide its colours.
        title: shown when the mouse is on it; by default the first line.
    """

    lines: list[str]
    kind: str
    title: str = ""

    @property
    def width(self) -> float:
        """In pixels."""
        return CHARACTER * max(map(len, self.lines)) + 16

    @property
    def height(self) -> float:
        """In pixels."""
        return LINE * len(self.lines) + 10

    def at(self, x: float, y: float) -> str:
        """It, with its centre there."""
        width, height, lines = self.width, self.height, self.lines
        spoken = [
            f'<text x="{x:.1f}" y="{y + LINE * (i - (len(lines) - 1) / 2) + 4:.1f}"'
            f"{_SMALL if i else ''}>{text(line)}</text>"
            for i, line in enumerate(lines)
        ]
        return (
            f'<g class="{self.kind}"><title>{text(self.title or lines[0])}</title>'
            f'<rect x="{x - width / 2:.1f}" y="{y - height / 2:.1f}" width="{width:.1f}" '
            f'height="{height:.1f}" rx="6"/>{"".join(spoken)}</g>'
        )


def edge(route: Sequence[tuple[float, float]], upper: Box, lower: Box, arrow: str = "arrow") -> str:
    """An arrow along a route between the centres of two boxes; `arrow` is its class, unless the usual one."""
    points = [
        (route[0][0], route[0][1] + upper.height / 2),
        *route[1:-1],
        (route[-1][0], route[-1][1] - lower.height / 2),
    ]
    way = f"M{points[0][0]:.1f} {points[0][1]:.1f}"
    for (x, y), (to_x, to_y) in pairwise(points):
        middle = (y + to_y) / 2
        way += f"C{x:.1f} {middle:.1f} {to_x:.1f} {middle:.1f} {to_x:.1f} {to_y:.1f}"
    kind = "" if arrow == "arrow" else f'class="{arrow}" '
    return f'<path {kind}d="{way}" marker-end="url(#{arrow})"/>'


def page(width: float, height: float, parts: Iterable[str], style: str = STYLE, arrows: str = "arrow") -> str:
    """The text of the file; `arrows` names the kinds of arrows in it."""
    heads = "".join(
        [
            f'<marker id="{name}" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="7" markerHeight="7" '
            'orient="auto"><path d="M0 0L8 4L0 8z"/></marker>'
            for name in arrows.split()
        ]
    )
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" '
        f'width="{width:.0f}" height="{height:.0f}">'
    )
    return "\n".join([head, f"<style>{style}\n</style>", f"<defs>{heads}</defs>", *parts, "</svg>\n"])


def file_of(path: str | PathLike[str] | None) -> Path | None:
    """Where a drawing is to be written; without a suffix it is SVG all the same.

    Raises:
        ArgumentError: the suffix is that of another kind of file.
    """
    target = None if path is None else Path(path)
    if target is not None and target.suffix.lower() not in ("", ".svg"):
        raise ArgumentError(
            f"{str(target)!r} can't be written: a drawing is SVG, and its file ends in .svg, such as "
            f"{str(target.with_suffix('.svg'))!r}"
        )
    return target


def save(svg: str, path: str | PathLike[str] | None) -> Drawing:
    """The drawing, in a file if a path is given.

    Raises:
        ArgumentError: as `file_of`.
    """
    target = file_of(path)
    if target is not None:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(svg, encoding="utf-8")
    return Drawing(svg, target)


def text(line: str) -> str:
    """Text as XML has it, which has no way to write control characters."""
    return escape("".join([character if character.isprintable() else "?" for character in line]))


def size(count: int) -> str:
    """Bytes for people."""
    shown = float(count)
    for unit in ("B", "KiB", "MiB"):
        if shown < 1024:
            return f"{shown:.3g} {unit}"
        shown /= 1024
    return f"{shown:.3g} GiB"
