"""A picture of one backward: when this rank computed, when each bucket was under way, what was not hidden."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from typing import Final

from psframework.autograd.lanes import Lanes
from psframework.autograd.picture import Drawing, save, size
from psframework.ddp.bucket import Bucket
from psframework.ddp.step import Span, Step

_STYLE: Final = """
  .forward rect { fill: #dafbe1; stroke: #1a7f37; } .backward rect { fill: #ddf4ff; stroke: #0969da; }
  .bucket rect { fill: #fff8c5; stroke: #9a6700; } .bucket .open { fill: #ffebe9; stroke: #cf222e; }"""
_DARK: Final = """
    .forward rect { fill: #033a16; } .backward rect { fill: #0c2d6b; } .bucket rect { fill: #4b3900; }
    .bucket .open { fill: #67060c; }"""


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

    Raises:
        ArgumentError: the path ends in another suffix than .svg.
    """
    has_forward = 0 < forward.began < forward.ended <= step.spent[0].began
    computed = [forward, *step.spent] if has_forward else step.spent
    until = max(span.ended for span in (*step.spent, *step.flown))
    lanes = Lanes(("computation", "communication"), computed[0].began, until)
    parts = lanes.axis()
    for span in computed:
        kind = "forward" if span is forward else "backward"
        parts.append(lanes.bar(0, kind, span.label, span.began, span.ended, span.label))
    parts += _communication(lanes, step, buckets)
    parts.append(lanes.summary(_words(lanes.seconds, step, buckets)))
    return save(lanes.page(parts, _STYLE, _DARK), path)


def _communication(lanes: Lanes, step: Step, buckets: Sequence[Bucket]) -> list[str]:
    bars = []
    computed = step.spent[-1].ended
    taken = 0.0  # the lane carries one bucket at a time
    for span, bucket in zip(step.flown, buckets):
        began = max(span.began, taken)
        taken = max(span.ended, began)
        title = f"bucket {span.label}, {size(bucket.buffer.nbytes)}: {', '.join(bucket.names)}"
        bars.append(lanes.bar(1, "bucket", f"bucket {span.label}", began, taken, title, open_from=computed))
    return bars


def _words(seconds: float, step: Step, buckets: Sequence[Bucket]) -> str:
    count, open_ = len(step.flown), exposed(step)
    nbytes = sum(bucket.buffer.nbytes for bucket in buckets)
    return (
        f"{seconds * 1e3:.2f} ms, {count} bucket{'' if count == 1 else 's'} of {size(nbytes)}; "
        f"communication not hidden by computation: {open_ * 1e3:.2f} ms ({100 * open_ / seconds:.1f} %)"
    )
