"""Costs of layers: medians of times by an injected clock, memory, and a model that stays as it was."""

from collections.abc import Iterator, Sequence
from itertools import cycle
from typing import Any

import numpy as np
import pytest

from psframework import nn
from psframework.autograd import Tensor, no_grad, ops, recompute
from psframework.errors import ArgumentError
from psframework.nn import functional as F
from psframework.nn import random
from psframework.pipeline.measure import measure
from psframework.pipeline.skips import pop, skippable, stash
from psframework.testing.strict_device import strict_devices

RNG = np.random.default_rng(0)


class Time:
    """A clock that only layers move on."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Slow(nn.Module):
    """Takes the next of these times in each forward, and as much again in backward."""

    def __init__(self, clock: Time, seconds: Sequence[float]) -> None:
        self.clock = clock
        self.seconds: Iterator[float] = cycle(seconds)
        self.weight = nn.Parameter(np.ones(3))
        self.seen: list[Any] = []

    def forward(self, x: Any) -> Any:
        """`x * weight`."""
        took = next(self.seconds)
        self.seen.append(x.data)
        self.clock.now += took
        result = x * self.weight
        result.register_hook(lambda gradient: self._wait(took))
        return result

    def _wait(self, took: float) -> None:
        self.clock.now += took


def test_a_layer_costs_the_median_of_forward_and_backward() -> None:
    clock = Time()
    # The first run is not counted; of 1, 50 and 2 seconds the median is 2.
    model = nn.Sequential(Slow(clock, [100, 1, 50, 2]), Slow(clock, [0, 3, 3, 3]))
    costs = measure(model, np.ones((2, 3)), repetitions=3, clock=clock)
    assert [cost.seconds for cost in costs] == [4, 6]


def test_a_layer_gets_what_the_one_before_gives() -> None:
    clock = Time()
    model = nn.Sequential(nn.Linear(2, 3).double(), nn.ReLU(), Slow(clock, [1]))
    x = RNG.normal(size=(4, 2))
    measure(model, x, repetitions=2, clock=clock)
    seen = model[2].seen  # type: ignore[attr-defined]
    assert len(seen) == 3
    for each in seen:
        np.testing.assert_array_equal(each, model[:2](x).data)


def test_the_loss_counts_with_the_last_layer() -> None:
    clock = Time()

    def loss(outputs: Any, targets: Any) -> Tensor:
        clock.now += 10
        return F.mse_loss(outputs, targets)

    model = nn.Sequential(Slow(clock, [1]), Slow(clock, [1]))
    x = np.ones((2, 3))
    costs = measure(model, (x, x), loss, clock=clock)
    assert [cost.seconds for cost in costs] == [2, 12]
    with pytest.raises(ArgumentError, match=r"must be a pair: \(inputs, targets\)"):
        measure(model, x, loss, clock=clock)


def rich() -> nn.Sequential:
    """With all that a run could change."""
    layers = [nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(0.5), nn.ReLU(), nn.Linear(6, 3)]
    return nn.Sequential(*layers)


def test_the_model_and_the_random_numbers_stay_as_they_were() -> None:
    model = rich()
    model[3].eval()
    x, y = RNG.normal(size=(8, 4)).astype(np.float32), RNG.integers(0, 3, 8)
    F.cross_entropy(model(x), y).backward()
    gradients = [parameter.grad for parameter in model.parameters()]
    values = [gradient.copy() for gradient in gradients]
    before, buffers, numbers = model.state_dict(), list(model.buffers()), random.get_state()
    measure(model, (x, y), F.cross_entropy, repetitions=2)
    assert random.get_state() == numbers
    assert [module.training for module in model] == [True, True, True, False, True]
    np.testing.assert_equal(model.state_dict(), before)
    assert all(now is then for now, then in zip(model.buffers(), buffers, strict=True))
    for parameter, gradient, value in zip(model.parameters(), gradients, values, strict=True):
        assert parameter.grad is gradient and parameter.requires_grad
        np.testing.assert_array_equal(gradient, value)


def test_buffers_are_put_back_when_a_layer_fails() -> None:
    model = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(5, 2))
    before = model.state_dict()
    with pytest.raises(Exception, match="5"):
        measure(model, np.ones((3, 4), np.float32))
    np.testing.assert_equal(model.state_dict(), before)


class Counter(nn.Module):
    """Its buffer becomes another array in each forward."""

    def __init__(self) -> None:
        self.register_buffer("count", np.zeros(1))

    def forward(self, x: Any) -> Any:
        """Its argument."""
        self.count = self.count + 1
        return x


def test_buffers_that_are_assigned_anew_are_put_back() -> None:
    model = nn.Sequential(Counter())
    (before,) = model.buffers()
    measure(model, np.ones(2))
    (after,) = model.buffers()
    assert after is before and after == 0


def nbytes(model: nn.Sequential, sample: Any, loss: Any = None) -> list[int]:
    return [cost.nbytes for cost in measure(model, sample, loss, repetitions=1)]


def test_memory_is_parameters_gradients_buffers_and_results() -> None:
    x = np.ones((5, 4), np.float32)
    model = nn.Sequential(nn.Linear(4, 6, bias=False), nn.ReLU(), nn.Flatten(), nn.BatchNorm1d(6))
    linear, relu, flatten, norm = nbytes(model, x)
    assert linear == 2 * 4 * 6 * 4 + 5 * 6 * 4
    assert relu == 5 * 6 * 4
    assert flatten == 0  # it shows the memory of the layer before
    assert norm >= 2 * 2 * 6 * 4 + 2 * 6 * 4 + 8 + 5 * 6 * 4


def test_parameters_that_are_not_trained_have_no_gradient() -> None:
    model = nn.Sequential(nn.Linear(4, 6, bias=False))
    assert nbytes(model.requires_grad_(False), np.ones((5, 4), np.float32)) == [4 * 6 * 4]


class Wide(nn.Module):
    """Keeps a large result inside, or only what goes into it."""

    def __init__(self, again: bool) -> None:
        self.again = again

    def forward(self, x: Any) -> Any:
        """The mean of a large product."""
        return recompute(self._wide, x) if self.again else self._wide(x)

    def _wide(self, x: Any) -> Any:
        return (ops.reshape(x, (-1, 1, 2)) * np.ones((1, 100, 1))).mean(1)


def test_recomputation_keeps_less() -> None:
    layers = [nn.ReLU(), Wide(False), Wide(True)]
    _, kept, again = nbytes(nn.Sequential(*layers), np.ones((3, 2)))
    assert kept >= 3 * 100 * 2 * 8
    assert again == 3 * 2 * 8


def test_trees_ids_and_sparse_gradients() -> None:
    class Sum(nn.Module):
        def forward(self, both: Any) -> Any:
            return both["left"] + both["right"][0]

    class Both(nn.Module):
        def forward(self, x: Any) -> Any:
            return {"left": x, "right": (x * 2, 1.5, None)}

    model = nn.Sequential(nn.Embedding(7, 3, sparse=True), Both(), Sum())
    costs = measure(model, np.array([[1, 2], [3, 3]]), repetitions=1)
    assert len(costs) == 3 and all(cost.seconds > 0 for cost in costs)


def test_skips_go_past_the_layers_between() -> None:
    @skippable(stash=("low",))
    class Encoder(nn.Linear):
        def forward(self, x: Any) -> Any:
            result = super().forward(x)
            stash("low", result)
            return result

    @skippable(pop=("low",))
    class Decoder(nn.Linear):
        def forward(self, x: Any) -> Any:
            return super().forward(x) + pop("low")

    model = nn.Sequential(Encoder(2, 3), nn.Linear(3, 3), Decoder(3, 3))
    x = np.ones((4, 2), np.float32)
    assert len(measure(model, x, repetitions=3)) == 3
    assert model(x).shape == (4, 3)


def test_gradients_are_measured_under_no_grad_too() -> None:
    clock = Time()
    with no_grad():
        costs = measure(nn.Sequential(Slow(clock, [1])), np.ones((2, 3)), clock=clock)
    assert [cost.seconds for cost in costs] == [2]


def test_layers_are_measured_where_they_are() -> None:
    with strict_devices("gpu-0") as (gpu,):
        model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 1)).to("gpu-0")
        x = gpu.ones((4, 2), np.float32)
        costs = measure(model, (x, gpu.zeros((4, 1), np.float32)), F.mse_loss, repetitions=1)
    assert len(costs) == 3


@pytest.mark.parametrize("repetitions", [0, True, 2.0])
def test_repetitions_are_checked(repetitions: Any) -> None:
    with pytest.raises(ArgumentError, match="repetitions="):
        measure(nn.Sequential(nn.ReLU()), np.ones(3), repetitions=repetitions)
