"""A picture of a pipeline's steps as they ran: a lane for each rank, its actions, and when it was idle."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from typing import Final, NamedTuple

from psframework.autograd.lanes import Lanes
from psframework.autograd.picture import Drawing, save
from psframework.errors import ArgumentError

_WORDS: Final = {"F": "forward", "B": "backward", "W": "weights", "U": "update"}
_STYLE: Final = """
  .forward rect { fill: #dafbe1; stroke: #1a7f37; } .backward rect { fill: #ddf4ff; stroke: #0969da; }
  .weights rect { fill: #fbefff; stroke: #8250df; } .update rect { fill: #fff8c5; stroke: #9a6700; }
  .idle rect { fill: url(#hatched); stroke: none; }"""
_DARK: Final = """
    .forward rect { fill: #033a16; } .backward rect { fill: #0c2d6b; } .weights rect { fill: #3c1e70; }
    .update rect { fill: #4b3900; } .idle rect { fill: url(#hatched); }"""
_HATCHED: Final = (
    '<defs><pattern id="hatched" width="6" height="6" patternUnits="userSpaceOnUse" '
    'patternTransform="rotate(45)"><line x1="0" y1="0" x2="0" y2="6"/></pattern></defs>'
)


class Span(NamedTuple):
    """Something that a rank did.

    Attributes:
        rank: which, from 0.
        stage: of the model.
        microbatch: its number; -1 for an update.
        kind: "F", "B" and "W" as `schedule.Kind` has them, "U" for the update of the parameters.
        began: in seconds, on one clock for all ranks.
        ended: likewise.
    """

    rank: int
    stage: int
    microbatch: int
    kind: str
    began: float
    ended: float

    def __str__(self) -> str:
        return f"{self.kind}{self.stage}" + (f".{self.microbatch}" if self.microbatch >= 0 else "")


def bubble(spans: Sequence[Span]) -> float:
    """The share of all ranks' time, from 0 to 1, in which they did nothing, from the first span to the last.

    Ranks are counted from 0 to the largest in `spans`. Updates count as work.
    """
    ranks = 1 + max((span.rank for span in spans), default=-1)
    if not ranks:
        return 0.0
    began, ended = _ends(spans)
    waited = sum(until - since for rank in range(ranks) for since, until in _gaps(spans, rank))
    return waited / (ranks * (ended - began)) if ended > began else 0.0


def draw(spans: Sequence[Span], ranks: Sequence[str], path: str | PathLike[str] | None = None) -> Drawing:
    """Draws one step, or several.

    Args:
        spans: what the ranks did, in any order.
        ranks: the name of each.
        path: of an SVG file that is written.

    Raises:
        ArgumentError: there are no spans, one of a rank without a name, or a path that ends in another suffix
            than .svg.
    """
    if not spans:
        raise ArgumentError("timeline: no step has ended yet")
    if unknown := sorted({span.rank for span in spans} - {*range(len(ranks))}):
        raise ArgumentError(f"timeline: spans of rank {unknown[0]}, but {len(ranks)} names of ranks")
    lanes = Lanes(ranks, *_ends(spans))
    parts = [_HATCHED, *lanes.axis()]
    for rank in range(len(ranks)):
        parts += [lanes.bar(rank, "idle", "", *gap, "idle") for gap in _gaps(spans, rank)]
    for span in spans:
        word = _WORDS[span.kind]
        place = f"stage {span.stage}" + (f", micro-batch {span.microbatch}" if span.microbatch >= 0 else "")
        title = f"{word}, {place}"
        parts.append(lanes.bar(span.rank, word, str(span), span.began, span.ended, title))
    parts.append(lanes.summary(_summary(lanes.seconds, spans)))
    return save(lanes.page(parts, _STYLE, _DARK), path)


def _summary(seconds: float, spans: Sequence[Span]) -> str:
    there = {span.kind for span in spans}
    legend = ", ".join(f"{kind} {word}" for kind, word in _WORDS.items() if kind in there)
    return f"{seconds * 1e3:.2f} ms; bubble: {100 * bubble(spans):.1f} %; {legend}; hatched: idle"


def _ends(spans: Sequence[Span]) -> tuple[float, float]:
    return min(span.began for span in spans), max(span.ended for span in spans)


def _gaps(spans: Sequence[Span], rank: int) -> list[tuple[float, float]]:
    """When a rank did nothing while others did something."""
    free, end = _ends(spans)
    gaps = []
    for span in sorted([span for span in spans if span.rank == rank], key=lambda span: span.began):
        if span.began > free:
            gaps.append((free, span.began))
        free = max(free, span.ended)
    return [*gaps, (free, end)] if end > free else gaps
