"""What a trainer says is read back by `Progress`; people get a line an epoch."""

import io
import time

from psframework.cli.demo.events import Reporter
from psframework.cli.demo.progress import Progress, Traffic


def test_events_travel_to_the_progress() -> None:
    out = io.StringIO()
    reporter = Reporter("trainer-0", machine=True, out=out)
    reporter.start(5)
    with reporter.phase("compute"):
        pass
    reporter.step(6, 0.5, Traffic({"shm": 10}, {"parameter-server-0": 10}))
    reporter.epoch(6, 1, 0.5, 0.9)
    reporter.shards({"parameter-server-0": {"updates": 1, "busy": 0.25}})
    reporter.done({"accuracy": 0.9, "step": 6, "epoch": 1}, {})
    progress = Progress(total=6, first=5)
    assert all(progress.accept_line(line, time.monotonic()) for line in out.getvalue().splitlines())
    assert progress.step == 6
    assert progress.trainer("trainer-0").state == "done"
    assert progress.trainer("trainer-0").seconds["compute"] > 0
    assert progress.lanes() == {"shm": 10}
    assert progress.shard_bytes() == {"parameter-server-0": 10}
    assert progress.shards["parameter-server-0"].busy == 0.25
    assert progress.accuracies[0][1:] == (6, 1, 0.9)
    assert progress.result == {"accuracy": 0.9, "step": 6, "epoch": 1}


def test_a_phase_that_fails_is_counted_too() -> None:
    reporter = Reporter("trainer-0", machine=True, out=io.StringIO())
    try:
        with reporter.phase("server"):
            raise ConnectionError
    except ConnectionError:
        pass
    assert reporter.seconds["server"] > 0


def test_people_get_a_line_an_epoch_and_the_accuracy_last() -> None:
    out = io.StringIO()
    reporter = Reporter("trainer-0", machine=False, out=out)
    reporter.start(0)
    reporter.step(1, 0.5, Traffic())
    reporter.epoch(1, 1, 0.5, 0.9)
    reporter.shards({"parameter-server-0": {"updates": 1}})
    reporter.done({"accuracy": 0.9876, "step": 1, "epoch": 1}, {"inline": 0, "shm": 1_500_000})
    assert out.getvalue().splitlines() == [
        "epoch   1  step     1  loss 0.5000  accuracy 0.9000",
        "moved shm 1.5 MB",
        "test accuracy: 0.988",
    ]
    other = io.StringIO()
    Reporter("trainer-1", machine=False, out=other).done(None, {})
    assert other.getvalue() == ""
