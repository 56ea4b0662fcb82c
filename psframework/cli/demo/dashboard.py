"""Live progress on a terminal (rich); where there is none, one line an epoch."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from psframework.cli.demo.progress import Progress


class Dashboard:
    """Shows a `Progress` while it grows.

    Args:
        progress: the state to show.
        console: where; a terminal is redrawn in place, anything else gets one line an epoch.
    """

    def __init__(self, progress: Progress, console: Console):
        self._progress = progress
        self._console = console
        self._live = Live(console=console, refresh_per_second=8, transient=False, get_renderable=self._render)
        self._epochs = 0
        self._notes = 0

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._console.is_terminal:
            self._live.stop()

    def changed(self) -> None:
        """New events were taken: prints what a redrawn screen would not keep."""
        progress = self._progress
        for note in progress.notes[self._notes :]:
            self._console.print(note, highlight=False)
        self._notes = len(progress.notes)
        if self._console.is_terminal:
            return
        for _ in progress.accuracies[self._epochs :]:
            self._console.print(epoch_line(progress, self._epochs), highlight=False, soft_wrap=True)
            self._epochs += 1

    def _render(self) -> RenderableType:
        return render(self._progress)


def epoch_line(progress: Progress, index: int) -> str:
    """One line about the epoch that is entry `index` of the accuracies."""
    _, step, epoch, accuracy = progress.accuracies[index]
    speed = sum(trainer.steps_per_second() for trainer in progress.trainers.values())
    moved = ", ".join(
        f"{lane} {megabytes(count)}" for lane, count in sorted(progress.lanes().items()) if count
    )
    loss = min((trainer.loss for trainer in progress.trainers.values()), default=float("nan"))
    learnt = f"epoch {epoch:3d}  step {step:5d}  loss {loss:.4f}  accuracy {accuracy:.4f}"
    return f"{learnt}  {speed:6.0f} steps/s  {moved}"


def render(progress: Progress) -> RenderableType:
    """The whole screen: how far, trainers, shards."""
    return Group(_headline(progress), _trainers(progress), _shards(progress))


def _headline(progress: Progress) -> RenderableType:
    grid = Table.grid(padding=(0, 1))
    bar = ProgressBar(
        total=max(progress.total - progress.first, 1), completed=progress.step - progress.first, width=40
    )
    accuracy = f"{progress.accuracies[-1][3]:.4f}" if progress.accuracies else "-"
    epoch = progress.accuracies[-1][2] if progress.accuracies else 0
    text = f"step {progress.step}/{progress.total}  epoch {epoch}  test accuracy {accuracy}"
    grid.add_row(Text("training"), bar, Text(text, style="bold"))
    return grid


def _trainers(progress: Progress) -> RenderableType:
    table = Table("trainer", "state", title="trainers", title_justify="left")
    for heading in ("step", "loss", "steps/s", "inline", "striped", "shm"):
        table.add_column(heading, justify="right")
    for name, trainer in sorted(progress.trainers.items()):
        lanes = [megabytes(trainer.lanes.get(lane, 0)) for lane in ("inline", "striped", "shm")]
        speed = f"{trainer.steps_per_second():.0f}"
        table.add_row(name, trainer.state, str(trainer.step), f"{trainer.loss:.4f}", speed, *lanes)
    return table


def _shards(progress: Progress) -> RenderableType:
    table = Table("shard", title="shards", title_justify="left")
    for heading in ("updates", "moved", "busy"):
        table.add_column(heading, justify="right")
    moved = progress.shard_bytes()
    for name, shard in sorted(progress.shards.items()):
        table.add_row(name, str(shard.updates), megabytes(moved.get(name, 0)), f"{shard.busy:.2f} s")
    return table


def megabytes(count: int) -> str:
    """Bytes for people: `12.3 MB`."""
    return f"{count / 1e6:.1f} MB"
