"""Cuts by measured costs: even enough on unequal layers, and within the memory that there is."""

from typing import Any

import numpy as np
import pytest

import psframework as psf
from psframework import nn
from psframework.errors import ArgumentError
from psframework.nn import functional as F
from psframework.pipeline.balance import Balance, arranged
from psframework.pipeline.measure import Cost

# Times of layers: an embedding, blocks, and a large head; convolutions, each over fewer places.
TRANSFORMER = [0.2, *[1.0, 0.1, 2.1, 0.1] * 6, 3.0]
CONVOLUTIONS = [4.0, 0.5, 3.1, 0.5, 2.2, 0.4, 1.7, 0.4, 1.2, 0.3, 0.9, 0.2, 0.6, 0.1]


@pytest.mark.parametrize("times", [TRANSFORMER, CONVOLUTIONS], ids=["transformer", "convolutions"])
@pytest.mark.parametrize("stages", [2, 3])
def test_the_slowest_stage_is_near_the_mean(times: list[float], stages: int) -> None:
    found = arranged([Cost(seconds, 1) for seconds in times], stages)
    assert found.slowest == pytest.approx(max(seconds for seconds, _ in found.stages) * stages / sum(times))
    assert found.slowest <= 1.15


COSTS = [Cost(1.0, 100), Cost(1.0, 1), Cost(1.0, 1), Cost(3.0, 1)]


def test_by_time_by_memory_and_within_a_limit() -> None:
    assert arranged(COSTS, 2).sizes == [3, 1]
    assert arranged(COSTS, 2, "memory").sizes == [1, 3]
    assert arranged(COSTS, 2, memory_limit=101).sizes == [2, 2]
    assert arranged(COSTS, 2, memory_limit=102).sizes == [3, 1]


def test_a_limit_that_no_cut_keeps_to() -> None:
    with pytest.raises(
        ArgumentError, match=r"2 stages, one of them has 100 bytes at least, and the limit is 99"
    ):
        arranged(COSTS, 2, memory_limit=99)


def test_the_table() -> None:
    found = Balance([2, 1], [0.001, 0.002, 0.005], [1 << 20, 1 << 20, 1 << 19])
    assert found.stages == [(0.003, 2 << 20), (0.005, 1 << 19)]
    assert str(found).splitlines() == [
        "stage  layers              time         memory",
        "    0  0-1             3.000 ms        2.0 MiB",
        "    1  2               5.000 ms        0.5 MiB",
        "slowest stage: 1.25 x the mean",
    ]


def test_layers_that_take_no_time() -> None:
    assert Balance([1, 1], [0.0, 0.0], [0, 0]).slowest == 1.0


def model() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 64), nn.Linear(64, 3))


@pytest.mark.parametrize("by", ["time", "memory"])
def test_a_model_is_measured_and_cut(by: Any) -> None:
    x, y = np.ones((16, 4), np.float32), np.zeros(16, np.int64)
    found = psf.pipeline.balance(model(), (x, y), 3, by=by, loss=F.cross_entropy, repetitions=2)
    assert len(found.sizes) == 3 and min(found.sizes) >= 1 and sum(found.sizes) == 5
    assert len(found.seconds) == len(found.nbytes) == 5
    assert all(seconds > 0 for seconds in found.seconds)
    assert found.nbytes[3] >= 2 * (64 * 64 + 64) * 4
    assert isinstance(found, psf.pipeline.Balance)


def test_arguments_are_checked_before_anything_runs() -> None:
    class Never(nn.Module):
        def forward(self, x: Any) -> Any:
            raise AssertionError("it ran")

    layers = nn.Sequential(Never(), Never())
    with pytest.raises(ArgumentError, match=r"2 layers can't be cut into 3 stages"):
        psf.pipeline.balance(layers, np.ones(3), 3)
    with pytest.raises(ArgumentError, match=r"by='size' is none of time, memory"):
        psf.pipeline.balance(layers, np.ones(3), 2, by="size")  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match=r"Never has a forward of its own"):
        psf.pipeline.balance(Never(), np.ones(3), 1)  # type: ignore[arg-type]
