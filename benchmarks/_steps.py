"""Training steps in one process: how sides serve them, and a check that all compute the same."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from benchmarks._host import pin, set_allocator
from benchmarks._side import Figures, Side, interleave, running, serve_side

Step = Callable[[], Any]
"""Does one step; returns its loss."""


def serve_steps(make: Mapping[str, Callable[[], Step]], counts: Mapping[str, int]) -> None:
    """A side's process: steps a second of the case asked for, and `loss:CASE` for the loss after 10 steps.

    Args:
        make: for each case what makes its step.
        counts: steps of a repetition.
    """
    set_allocator()
    pin(0)
    steps = {case: each() for case, each in make.items()}
    losses = {case: [float(step()) for _ in range(10)][-1] for case, step in steps.items()}

    def rate(case: str) -> float:
        start = time.perf_counter()
        for _ in range(counts[case]):
            steps[case]()
        return counts[case] / (time.perf_counter() - start)

    answers: dict[str, Callable[[], float]] = {}
    for case in steps:
        answers[case] = lambda case=case: rate(case)  # type: ignore[misc]
        answers[f"loss:{case}"] = lambda case=case: losses[case]  # type: ignore[misc]
    serve_side(answers)


def measure_steps(sides: Sequence[Side], cases: Mapping[str, Collection[str]], reps: int) -> Figures:
    """Runs each case on the sides that are named with it, in turn."""
    figures: Figures = {}
    with running(sides):
        for case, names in cases.items():
            able = [side for side in sides if side.name in names]
            losses = [side.run(f"loss:{case}") for side in able]
            spread = max(losses) - min(losses)
            assert spread < 1e-3 * max(losses), f"{case}: the sides do not compute the same: {losses}"
            figures |= interleave(able, [case], reps)
    return figures
