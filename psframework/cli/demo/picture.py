"""The picture of a run: loss and accuracy, throughput, and where the time went. Needs the `plot` extra."""

from __future__ import annotations

import importlib.util
import math
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from psframework.cli.demo.progress import PHASES, Point, Progress

if TYPE_CHECKING:
    from matplotlib.axes import Axes

HINT = "no picture: matplotlib is missing (pip install 'psframework[plot]')"
_WINDOWS = 60
_LABELS = {
    "data": "batches",
    "compute": "forward and backward",
    "server": "parameter server, with waits",
    "evaluate": "test data",
}


def can_draw() -> bool:
    """Whether matplotlib is installed."""
    return importlib.util.find_spec("matplotlib") is not None


def draw(progress: Progress, path: Path, title: str) -> None:
    """Writes the picture of `progress` to `path` (PNG). Call it only when `can_draw()`."""
    from matplotlib.figure import Figure

    path.parent.mkdir(parents=True, exist_ok=True)
    figure = Figure(figsize=(11, 8), layout="constrained")
    figure.suptitle(title)
    grid = figure.add_gridspec(2, 2, height_ratios=(3, 2))
    _learning(figure.add_subplot(grid[0, :]), progress)
    _throughput(figure.add_subplot(grid[1, 0]), progress.points)
    _time(figure.add_subplot(grid[1, 1]), progress.seconds())
    figure.savefig(path, dpi=110)


def _learning(axes: Axes, progress: Progress) -> None:
    lines: list[Any] = []
    for trainer, points in sorted(_by_trainer(progress.points).items()):
        steps, losses = [point.step for point in points], smooth([point.loss for point in points])
        lines += axes.plot(steps, losses, label=f"loss of {trainer}", linewidth=1)
    axes.set(xlabel="step", ylabel="training loss", yscale="log", title="Loss and accuracy")
    right = axes.twinx()
    steps = [step for _, step, _, _ in progress.accuracies]
    accuracies = [accuracy for *_, accuracy in progress.accuracies]
    lines += right.plot(steps, accuracies, "k.-", label="test accuracy")
    right.set(ylabel="test accuracy", ylim=(min([*accuracies, 0.9]) - 0.02, 1.0))
    axes.legend(handles=lines, loc="center right")
    axes.grid(alpha=0.3)


def _throughput(axes: Axes, points: Sequence[Point]) -> None:
    times, steps, megabytes = throughput(points)
    (first,) = axes.plot(times, steps, label="steps/s, all trainers")
    axes.set(xlabel="seconds", ylabel="steps/s", title="Throughput", ylim=(0, None))
    right = axes.twinx()
    (second,) = right.plot(times, megabytes, "C1--", label="MB/s through the parameter server")
    right.set(ylabel="MB/s", ylim=(0, None))
    axes.legend(handles=[first, second], loc="lower right")
    axes.grid(alpha=0.3)


def _time(axes: Axes, seconds: dict[str, dict[str, float]]) -> None:
    names = list(seconds)
    left = [0.0] * len(names)
    for phase in PHASES:
        widths = [seconds[name].get(phase, 0.0) for name in names]
        axes.barh(names, widths, left=left, label=_LABELS[phase])
        left = [start + width for start, width in zip(left, widths)]
    axes.set(xlabel="seconds", title="Where the time went")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.25), ncols=2, fontsize="small")


def smooth(values: Sequence[float], weight: float = 0.9) -> list[float]:
    """Exponential moving average, unbiased at its start."""
    total, mass, out = 0.0, 0.0, []
    for value in values:
        if math.isfinite(value):
            total, mass = weight * total + value, weight * mass + 1
        out.append(total / mass if mass else float("nan"))
    return out


def throughput(points: Sequence[Point]) -> tuple[list[float], list[float], list[float]]:
    """Steps/s and MB/s of all trainers over time.

    Returns: middles of equal windows in seconds, steps/s in each, MB/s in each.
    """
    if not points:
        return [], [], []
    width = max(point.time for point in points) / _WINDOWS or 1.0
    steps, moved = [0] * _WINDOWS, [0] * _WINDOWS
    for own in _by_trainer(points).values():
        before = 0
        for point in own:
            window = min(int(point.time / width), _WINDOWS - 1)
            steps[window] += 1
            moved[window] += point.bytes - before
            before = point.bytes
    times = [(window + 0.5) * width for window in range(_WINDOWS)]
    return times, [count / width for count in steps], [count / width / 1e6 for count in moved]


def _by_trainer(points: Sequence[Point]) -> dict[str, list[Point]]:
    grouped: dict[str, list[Point]] = defaultdict(list)
    for point in points:
        grouped[point.trainer].append(point)
    return grouped
