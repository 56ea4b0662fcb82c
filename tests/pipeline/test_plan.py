"""What driver and ranks tell each other: who holds what, who keeps whose state, and that it all travels."""

import numpy as np
import pytest

import psframework.nn.functional as F
from psframework.pipeline.plan import Key, Order, PipePlan, Report, StagePlan, Standing
from tests.support.pipeline_models import Hidden
from tests.support.pipeline_world import travelled


def plan(*replicas: int, stages: int | None = None) -> PipePlan:
    """Ranks with so many services: "0", "0b", "0c", "1", ..."""
    services = tuple(
        tuple(f"{rank}{'_bcd'[n].strip('_')}" for n in range(c)) for rank, c in enumerate(replicas)
    )
    return PipePlan("pipe", 1, services, stages or len(replicas), "1f1b", 0)


def test_virtual_stages_go_round() -> None:
    pipe = plan(1, 1, 1, stages=9)
    assert pipe.ranks == 3 and pipe.virtual_stages == 3
    assert [list(pipe.stages_of(rank)) for rank in range(3)] == [[0, 3, 6], [1, 4, 7], [2, 5, 8]]
    for stage in range(9):
        assert pipe.service_of(stage, 5) == str(stage % 3)


def test_replicas_take_micro_batches_in_turns() -> None:
    pipe = plan(1, 3, 2, stages=6)
    assert [pipe.service_of(1, m) for m in range(5)] == ["1", "1b", "1c", "1", "1b"]
    assert [pipe.service_of(4, m) for m in range(3)] == ["1", "1b", "1c"]
    assert [pipe.service_of(5, m) for m in range(3)] == ["2", "2b", "2"]


@pytest.mark.parametrize(
    ("replicas", "buddies"),
    [
        ([1], [None]),
        ([1, 1], ["1", "0"]),
        ([1, 1, 1], ["1", "2", "0"]),
        ([1, 1, 1, 1], ["1", "2", "3", "0"]),
        ([2], [None]),
        ([1, 2], ["1", None]),
        ([2, 1], [None, "0"]),
        ([2, 2], [None, None]),
        ([1, 3, 1, 2], ["1", None, "3", None]),
    ],
)
def test_who_keeps_whose_state(replicas: list[int], buddies: list[str | None]) -> None:
    """The next rank; replicas have it anyway, and a rank by itself has nobody."""
    pipe = plan(*replicas)
    assert [pipe.buddy_of(rank) for rank in range(len(replicas))] == buddies
    for rank, buddy in enumerate(buddies):
        assert buddy not in pipe.services[rank]


def test_all_of_it_travels() -> None:
    stage = StagePlan(
        1, Hidden, (3,), {"width": 4}, {"name": "sgd"}, F.cross_entropy, True, {"a": 2}, {"b": 0}
    )
    for value in (
        Key(3, "S:low", 1, 2),
        stage,
        plan(1, 2),
        Order(3, 2, 4, (0.5, 0.5), False, "held", False, 1, 2, True, False),
        Standing((3, 7), "computing F of stage 1", 0.5),
    ):
        arrived = travelled(value)
        assert arrived == value and type(arrived) is type(value)
    report = Report({0: 0.5}, {1: np.arange(3)}, (("F", 0, 0, 0.1, 0.2),), {0: 2}, 1.5, 3.0)
    arrived = travelled(report)
    np.testing.assert_array_equal(arrived.outputs[1], report.outputs[1])
    assert (arrived.losses, arrived.peak, arrived.power) == (report.losses, report.peak, report.power)
    assert [tuple(each) for each in arrived.spans] == list(report.spans)


def test_keys_tell_apart_what_they_are_for() -> None:
    key = Key(1, "F", 2, 3)
    others = [Key(2, "F", 2, 3), Key(1, "B", 2, 3), Key(1, "F", 1, 3), Key(1, "F", 2, 4)]
    assert len({key, *others}) == 5
