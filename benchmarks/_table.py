"""How figures are shown: a row for each case, a column for each side, our ratio to each peer."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from benchmarks._side import OURS, Figures


@dataclass(frozen=True)
class Row:
    """How a case is shown.

    Args:
        case: its name.
        label: what people read.
        unit: of the figure.
        scale: factor from the figure to the unit.
        target: our ratio to the first peer that the budget asks for.
        lower_is_better: whether the figure is a time.
        limit: what our own figure may be at most (at least, if higher is better), in the unit.
    """

    case: str
    label: str
    unit: str
    scale: float = 1.0
    target: float | None = None
    lower_is_better: bool = False
    limit: float | None = None

    def judge(self, figure: float, bound: float, unit: str) -> tuple[bool, str]:
        """Whether a figure keeps to its bound, and how that is said."""
        good = figure <= bound if self.lower_is_better else figure >= bound
        sign = "<=" if self.lower_is_better else ">="
        return good, f"  ({sign} {bound:g}{unit}: {'met' if good else 'NOT MET'})"


def report(
    figures: Figures, rows: Sequence[Row], *, ours: str = OURS, peers: Sequence[str] = ("torch",)
) -> bool:
    """Prints median [min..max] of every side and our ratio to each peer; returns whether targets are met."""
    met = True
    names = [ours, *peers]
    width = max(len(row.label) for row in rows)
    print(f"{'':{width}}  " + "  ".join(f"{name:>28}" for name in names) + "   ratio (target)")
    for row in rows:
        by_side = figures[row.case]
        cells = [_cell(by_side.get(name, []), row) for name in names]
        ratios = [_ratio(by_side, ours, peer) for peer in peers if by_side.get(peer)]
        verdict = "  ".join(f"{ratio:.2f}x" for ratio in ratios)
        for good, text in _judged(row, ratios, by_side[ours]):
            met = met and good
            verdict += text
        print(f"{row.label:{width}}  " + "  ".join(f"{cell:>28}" for cell in cells) + f"   {verdict}")
    return met


def _judged(row: Row, ratios: Sequence[float], own: Sequence[float]) -> Iterator[tuple[bool, str]]:
    if row.target is not None and ratios:
        yield row.judge(ratios[0], row.target, "x")
    if row.limit is not None:
        yield row.judge(statistics.median(own) * row.scale, row.limit, f" {row.unit}")


def _cell(values: Sequence[float], row: Row) -> str:
    if not values:
        return "-"
    low, middle, high = (f(values) * row.scale for f in (min, statistics.median, max))
    return f"{middle:.4g} [{low:.4g}..{high:.4g}] {row.unit}"


def _ratio(by_side: Mapping[str, Sequence[float]], ours: str, peer: str) -> float:
    return statistics.median(by_side[ours]) / statistics.median(by_side[peer])
