"""A picture of one backward: when this rank computed, when each bucket was under way, what was not hidden."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from os import PathLike
from typing import Final

from psframework.autograd.picture import CHARACTER, Drawing, page, save, size, text
from psframework.ddp.bucket import Bucket
from psframework.ddp.step import Span, Step

_WIDTH, _LEFT, _TOP, _ROW, _BAR = 900.0, 120.0, 56.0, 44.0, 24.0  # pixels
_STYLE: Final = """
  text { font: 11px ui-monospace, monospace; fill: #1f2328; }
  .small { font-size: 9px; fill: #656d76; }
  .middle { text-anchor: middle; } .end { text-anchor: end; }
  rect { stroke: #8c959f; fill: #fff; }
  .forward rect { fill: #dafbe1; stroke: #1a7f37; } .backward rect { fill: #ddf4ff; stroke: #0969da; }
  .bucket rect { fill: #fff8c5; stroke: #9a6700; } .bucket .open { fill: #ffebe9; stroke: #cf222e; }
  line { stroke: #8c959f; } .grid { stroke-dasharray: 2 4; }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3; } .small { fill: #9198a1; } rect { fill: #161b22; }
    .forward rect { fill: #033a16; } .backward rect { fill: #0c2d6b; } .bucket rect { fill: #4b3900; }
    .bucket .open { fill: #67060c; }
  }"""


def exposed(step: Step) -> float:
    """Seconds of communication that no computation of the backward hid."""
    computed = max((span.ended for span in step.spent), default=0.0)
    return max([0.0, *(span.ended - computed for span in step.flown)])


def draw(
    forward: Span, step: Step, buckets: Sequence[Bucket], path: str | PathLike[str] | None = None
) -> Drawing:
    """Draws the forward and backward of one step.

    Args:
        forward: that came before, if one did.
        step: a backward that has ended.
        buckets: those of the step.
        path: of an SVG file that is written.
    """
    lanes = _Lanes(forward, step)
    parts = lanes.axis()
    if lanes.has_forward:
        parts.append(lanes.bar(0, "forward", "forward", forward.began, forward.ended, "forward"))
    for span in step.spent:
        parts.append(lanes.bar(0, "backward", span.label, span.began, span.ended, span.label))
    computed = step.spent[-1].ended
    taken = 0.0  # the lane of communication carries one bucket at a time
    for span, bucket in zip(step.flown, buckets):
        began = max(span.began, taken)
        taken = max(span.ended, began)
        title = f"bucket {span.label}, {size(bucket.buffer.nbytes)}: {', '.join(bucket.names)}"
        parts.append(lanes.bar(1, "bucket", f"bucket {span.label}", began, taken, title, open_from=computed))
    parts += lanes.summary(len(step.flown), sum(bucket.buffer.nbytes for bucket in buckets), exposed(step))
    return save(page(_WIDTH, _TOP + 2 * _ROW + 48, parts, _STYLE, ""), path)


class _Lanes:
    """Where in the picture a time is."""

    def __init__(self, forward: Span, step: Step) -> None:
        self.has_forward = 0 < forward.began < forward.ended <= step.spent[0].began
        self._from = forward.began if self.has_forward else step.spent[0].began
        until = max(span.ended for span in (*step.spent, *step.flown))
        self._seconds = max(until - self._from, 1e-6)
        self._scale = (_WIDTH - _LEFT - 24) / self._seconds

    def _x(self, time: float) -> float:
        return _LEFT + (time - self._from) * self._scale

    def bar(
        self, lane: int, kind: str, label: str, began: float, ended: float, title: str,
        open_from: float = inf,
    ) -> str:  # fmt: skip
        """Something that took from `began` to `ended`; its label stands in it if there is room.

        What of it comes after `open_from` is drawn as open.
        """
        x, y = self._x(began), _TOP + lane * _ROW
        width = max((ended - began) * self._scale, 1.0)
        took = f"{(ended - began) * 1e3:.2f} ms"
        lines = "".join(
            f'<text class="middle{style}" x="{x + width / 2:.1f}" y="{y + down:.1f}">{text(line)}</text>'
            for line, style, down in ((label, "", 11), (took, " small", 21))
            if width > CHARACTER * len(line) + 4
        )
        rects = _rect(x, y, width)
        if open_from < ended:
            start = max(x, self._x(open_from))
            rects += _rect(start, y, x + width - start, "open")
        return f'<g class="{kind}"><title>{text(title)}: {took}</title>{rects}{lines}</g>'

    def axis(self) -> list[str]:
        """Names of the lanes, and a line for each round number of milliseconds."""
        parts = [
            f'<text class="end" x="{_LEFT - 10}" y="{_TOP + lane * _ROW + 16}">{name}</text>'
            for lane, name in enumerate(("computation", "communication"))
        ]
        low, high = _TOP - 10, _TOP + 2 * _ROW - 6
        step = _round(self._seconds * 1e3 / 6)
        for number in range(int(self._seconds * 1e3 / step) + 1):
            x = self._x(self._from + number * step / 1e3)
            parts.append(f'<line class="grid" x1="{x:.1f}" y1="{low}" x2="{x:.1f}" y2="{high}"/>')
            parts.append(
                f'<text class="small middle" x="{x:.1f}" y="{high + 12}">{number * step:g} ms</text>'
            )
        return parts

    def summary(self, buckets: int, nbytes: int, open_: float) -> list[str]:
        """What the picture says, in words."""
        share = 100 * open_ / self._seconds
        line = (
            f"{self._seconds * 1e3:.2f} ms, {buckets} bucket{'' if buckets == 1 else 's'} of {size(nbytes)}; "
            f"communication not hidden by computation: {open_ * 1e3:.2f} ms ({share:.1f} %)"
        )
        return [f'<text x="{_LEFT}" y="24">{text(line)}</text>']


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
