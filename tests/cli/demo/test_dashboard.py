"""A terminal is redrawn; a log gets one line an epoch, each once."""

import io

from rich.console import Console

from psframework.cli.demo.dashboard import Dashboard, megabytes, render
from psframework.cli.demo.progress import Progress, ShardState


def progress() -> Progress:
    state = Progress(total=100)
    trainer = state.trainer("trainer-0")
    trainer.step, trainer.loss, trainer.lanes = 42, 0.25, {"shm": 5_000_000, "inline": 0}
    trainer.shards = {"parameter-server-1": 2_500_000}
    state.shards["parameter-server-1"] = ShardState(updates=42, busy=0.5)
    return state


def test_the_screen_shows_trainers_shards_and_lanes() -> None:
    console = Console(file=io.StringIO(), width=120, record=True)
    state = progress()
    state.accuracies.append((1.0, 42, 3, 0.9712))
    console.print(render(state))
    text = console.export_text()
    for words in (
        "step 42/100",
        "test accuracy 0.9712",
        "trainer-0",
        "0.2500",
        "5.0 MB",
        "parameter-server-1",
        "2.5 MB",
    ):
        assert words in text


def test_a_log_gets_a_line_an_epoch() -> None:
    out = io.StringIO()
    state = progress()
    with Dashboard(state, Console(file=out, width=120)) as dashboard:
        dashboard.changed()
        state.accuracies.append((1.0, 42, 3, 0.9712))
        dashboard.changed()
        dashboard.changed()
        state.notes.append("trainer-1 was killed")
        dashboard.changed()
    lines = out.getvalue().splitlines()
    assert len(lines) == 2
    assert "epoch   3" in lines[0]
    assert "accuracy 0.9712" in lines[0]
    assert "shm 5.0 MB" in lines[0]
    assert "inline" not in lines[0], "a lane that carried nothing is not listed"
    assert lines[1] == "trainer-1 was killed"


def test_a_terminal_is_restored_after_an_error() -> None:
    out = io.StringIO()
    console = Console(file=out, width=120, force_terminal=True)
    try:
        with Dashboard(progress(), console):
            raise RuntimeError
    except RuntimeError:
        pass
    assert out.getvalue().rstrip("\n").endswith("\x1b[?25h"), "the cursor is shown again"


def test_megabytes() -> None:
    assert megabytes(12_340_000) == "12.3 MB"
