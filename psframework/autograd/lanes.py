"""Pictures of what ran when: bars along an axis of time, a lane for each place where something can run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import inf
from typing import Final

from psframework.autograd.picture import CHARACTER, page, text

_WIDTH, _TOP, _ROW, _BAR = 900.0, 56.0, 44.0, 24.0  # pixels
_STYLE: Final = """
  text { font: 11px ui-monospace, monospace; fill: #1f2328; }
  .small { font-size: 9px; fill: #656d76; }
  .middle { text-anchor: middle; } .end { text-anchor: end; }
  rect { stroke: #8c959f; fill: #fff; }
  line { stroke: #8c959f; } .grid { stroke-dasharray: 2 4; }"""
_DARK: Final = "text { fill: #e6edf3; } .small { fill: #9198a1; } rect { fill: #161b22; }"


class Lanes:
    """Where in the picture a time is, and what is drawn there.

    Args:
        names: of the lanes, from the top.
        began: the time at the left end, in seconds.
        ended: the time at the right end.

    Attributes:
        seconds: from one end to the other, a microsecond at least.
    """

    def __init__(self, names: Sequence[str], began: float, ended: float) -> None:
        self._names, self._from = names, began
        self.seconds = max(ended - began, 1e-6)
        self._left = max(120.0, CHARACTER * max(map(len, names), default=0) + 20)
        self._scale = (_WIDTH - self._left - 24) / self.seconds
        self._bottom = _TOP + len(names) * _ROW - 6

    def _x(self, time: float) -> float:
        return self._left + (time - self._from) * self._scale

    def bar(
        self, lane: int, kind: str, label: str, began: float, ended: float, title: str,
        open_from: float = inf,
    ) -> str:  # fmt: skip
        """Something that took from `began` to `ended`; its label stands in it if there is room.

        Args:
            lane: its number.
            kind: class of what is drawn, which decides its colours.
            label: what it is.
            began: in seconds.
            ended: in seconds.
            title: shown when the mouse is on it, with the milliseconds that it took.
            open_from: what of it comes after this time is of the class "open".
        """
        x, y = self._x(began), _TOP + lane * _ROW
        width = max((ended - began) * self._scale, 1.0)
        took = f"{(ended - began) * 1e3:.2f} ms"
        lines = "".join(
            f'<text class="middle{style}" x="{x + width / 2:.1f}" y="{y + down:.1f}">{text(line)}</text>'
            for line, style, down in ((label, "", 11), (took, " small", 21))
            if label and width > CHARACTER * len(line) + 4
        )
        rects = _rect(x, y, width)
        if open_from < ended:
            start = max(x, self._x(open_from))
            rects += _rect(start, y, x + width - start, "open")
        return f'<g class="{kind}"><title>{text(title)}: {took}</title>{rects}{lines}</g>'

    def axis(self) -> list[str]:
        """Names of the lanes, and a line for each round number of milliseconds."""
        parts = [
            f'<text class="end" x="{self._left - 10:.1f}" y="{_TOP + lane * _ROW + 16}">{text(name)}</text>'
            for lane, name in enumerate(self._names)
        ]
        low, high = _TOP - 10, self._bottom
        step = _round(self.seconds * 1e3 / 6)
        for number in range(int(self.seconds * 1e3 / step) + 1):
            x = self._x(self._from + number * step / 1e3)
            parts.append(f'<line class="grid" x1="{x:.1f}" y1="{low}" x2="{x:.1f}" y2="{high}"/>')
            parts.append(
                f'<text class="small middle" x="{x:.1f}" y="{high + 12}">{number * step:g} ms</text>'
            )
        return parts

    def summary(self, line: str) -> str:
        """What the picture says, in words."""
        return f'<text x="{self._left:.1f}" y="24">{text(line)}</text>'

    def page(self, parts: Iterable[str], style: str, dark: str) -> str:
        """The text of the file.

        Args:
            parts: what the other methods answered, later ones above earlier ones.
            style: CSS of the classes of bars.
            dark: what of it is different on a dark ground.
        """
        rules = f"{_STYLE}{style}\n  @media (prefers-color-scheme: dark) {{\n    {_DARK}{dark}\n  }}"
        return page(_WIDTH, self._bottom + 54, parts, rules, "")


def _rect(x: float, y: float, width: float, kind: str = "") -> str:
    style = f' class="{kind}"' if kind else ""
    return f'<rect{style} x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{_BAR}" rx="3"/>'


def _round(value: float) -> float:
    """The next number of 1, 2 or 5 and zeros."""
    power = 1.0
    while power > value:
        power /= 10
    while power * 10 <= value:
        power *= 10
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor >= value)
