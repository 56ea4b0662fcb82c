"""Events in any interleaving become the state that dashboard and picture show."""

import json
import math

from psframework.cli.demo.progress import Progress


def step(trainer: str, number: int, moment: float, loss: float = 1.0) -> dict[str, object]:
    return {
        "kind": "step",
        "trainer": trainer,
        "step": number,
        "loss": loss,
        "time": moment,
        "seconds": {"data": 0.1 * number, "compute": 0.5 * number, "server": 0.2 * number},
        "lanes": {"shm": 100 * number, "inline": number},
        "shards": {"parameter-server-0": 60 * number, "parameter-server-1": 41 * number},
    }


def run() -> Progress:
    progress = Progress(total=100)
    for name in ("trainer-0", "trainer-1"):
        progress.accept({"kind": "start", "trainer": name, "step": 0}, 10.0)
    for number in range(1, 11):
        progress.accept(step("trainer-0", number, 10 + number / 10, loss=1 / number), 10 + number / 10)
    progress.accept(step("trainer-1", 4, 10.4), 10.5)
    progress.accept({"kind": "epoch", "step": 10, "epoch": 1, "accuracy": 0.5}, 11.5)
    return progress


def test_steps_lanes_and_time_add_up() -> None:
    progress = run()
    assert progress.step == 10
    assert progress.lanes() == {"shm": 1400, "inline": 14}
    assert progress.shard_bytes() == {"parameter-server-0": 840, "parameter-server-1": 574}
    assert math.isclose(progress.trainer("trainer-0").steps_per_second(), 10)
    assert math.isclose(progress.seconds()["trainer-0"]["compute"], 5.0)
    assert progress.accuracies == [(1.5, 10, 1, 0.5)]
    assert math.isclose(progress.elapsed, 1.5)
    assert progress.points[0].time == 0.1 or math.isclose(progress.points[0].time, 0.1)


def test_lines_that_are_no_events_are_left_to_others() -> None:
    progress = Progress(total=1)
    assert not progress.accept_line("joined as trainer-0", 0.0)
    assert not progress.accept_line('{"kind": "step", broken', 0.0)
    assert progress.accept_line(json.dumps(step("trainer-0", 1, 1.0)), 1.0)
    assert progress.accept_line(json.dumps({"kind": "of another version"}), 1.0)
    assert progress.step == 1


def test_the_end_of_a_trainer() -> None:
    progress = run()
    progress.accept({"kind": "done", "trainer": "trainer-0", "accuracy": 0.98, "step": 10, "epoch": 1}, 12.0)
    progress.trainer_ended("trainer-0", 0)
    progress.trainer_ended("trainer-1", -9)
    assert progress.trainer("trainer-0").state == "done"
    assert progress.trainer("trainer-1").state == "killed"
    assert progress.result == {"accuracy": 0.98, "step": 10.0, "epoch": 1.0}
    progress.trainer_ended("trainer-2", 1)
    assert progress.trainer("trainer-2").state == "ended (1)"


def test_shards() -> None:
    progress = run()
    progress.accept({"kind": "shards", "shards": {"parameter-server-0": {"updates": 3, "busy": 0.5}}}, 1)
    assert progress.shards["parameter-server-0"].updates == 3
    assert progress.shards["parameter-server-0"].busy == 0.5
