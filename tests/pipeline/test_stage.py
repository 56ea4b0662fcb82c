"""One stage: what it keeps for a micro-batch, and what it gives."""

import weakref
from typing import Any

import numpy as np
import pytest

import psframework as psf
import psframework.nn.functional as F
from psframework import backend, nn, optim
from psframework.errors import ArgumentError
from psframework.pipeline.stage import LocalStage, StageOptions, Task
from psframework.testing.strict_device import strict_devices
from tests.support.pipeline_models import (
    CLASSES,
    WIDTH,
    Across,
    Dropped,
    Head,
    Hidden,
    Middle,
    Normed,
    data,
)


class Watched(nn.Module):
    """Remembers what its forward made."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH, dtype=np.float64)
        self.made: list[Any] = []

    def forward(self, x: psf.Tensor) -> psf.Tensor:
        hidden = self.layer(x).tanh()
        self.made.append(weakref.ref(hidden.data))
        return hidden * hidden


def task(number: int = 0, step: int = 0, **more: Any) -> Task:
    return Task(step, number, data(6, number)[0], **more)


def gradients(stage: LocalStage) -> list[Any]:
    return [each.grad for each in stage.module.parameters()]


@psf.pipeline.skippable(stash=("seen",))
class Counting(nn.Module):
    """Gives a buffer that it changes, what came in, and what lies transposed."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", np.zeros(1))
        self.weight = nn.Parameter(np.ones((WIDTH, WIDTH)))

    def forward(self, x: psf.Tensor) -> object:
        self.seen += 1
        psf.pipeline.stash("seen", psf.tensor(self.seen))
        return self.seen, psf.tensor(self.seen), x, (x @ self.weight).T


def test_nothing_that_is_sent_changes_while_the_next_micro_batch_computes() -> None:
    stage = LocalStage(Counting(), StageOptions(1))
    inputs = data(6)[0]
    given, number, through, turned = stage.forward(Task(0, 0, inputs)).outputs
    skipped = stage.forward(task(1)).skips["seen"]
    stage.forward(task(2))
    assert given == number == 1 and skipped == 2
    assert not np.shares_memory(through, inputs) and turned.flags.c_contiguous
    np.testing.assert_array_equal(turned, (inputs @ np.ones((WIDTH, WIDTH))).T)


def test_nor_does_what_an_inference_gives() -> None:
    stage = LocalStage(Counting(), StageOptions(1))
    inputs = data(6)[0]
    first = stage.predict(Task(0, 0, inputs))
    stage.predict(task(1))
    given, number, through, turned = first.outputs
    assert given == number == first.skips["seen"] == 1
    assert not np.shares_memory(through, inputs) and turned.flags.c_contiguous


def test_the_gradients_of_the_next_step_take_the_memory_of_those_before_where_rules_can() -> None:
    module = nn.Linear(WIDTH, WIDTH, dtype=np.float64)
    stage = LocalStage(module, StageOptions(0, needs_input_gradient=False), optim.SGD(lr=0.1).rule)

    def step(number: int) -> Any:
        stage.begin()
        stage.forward(task(step=number))
        stage.backward(0, np.ones((6, WIDTH)), {})
        return weakref.ref(module.weight.grad), weakref.ref(module.bias.grad)

    weight, bias = step(0)
    for number in (1, 2):
        stage.update()
        step(number)
        assert weight() is module.weight.grad
        assert bias() is None  # it would only be held, beside the new one


@pytest.mark.parametrize("recompute", [False, True])
def test_recomputation_does_not_keep_activations(recompute: bool) -> None:
    stage = LocalStage(Watched(), StageOptions(1, recompute=recompute))
    result = stage.forward(task())
    alive = stage.module.made[0]() is not None
    assert alive is not recompute
    stage.backward(0, np.ones_like(result.outputs), {})
    assert stage.module.made[0]() is None
    assert len(stage.module.made) == 1 + recompute


@pytest.mark.parametrize("kind", [Hidden, Dropped, Normed])
@pytest.mark.parametrize("recompute", [False, True])
def test_a_backward_in_two_parts_is_the_same(kind: Any, recompute: bool) -> None:
    def run(parts: bool) -> tuple[Any, list[Any]]:
        psf.manual_seed(0)
        stage = LocalStage(kind(), StageOptions(1, recompute=recompute))
        outputs = stage.forward(task()).outputs
        seed = np.cos(outputs)
        if not parts:
            return stage.backward(0, seed, {}).outputs, gradients(stage)
        answer = stage.backward_input(0, seed, {}).outputs
        stage.backward_weight(0)
        return answer, gradients(stage)

    (whole, all_at_once), (early, later) = run(False), run(True)
    np.testing.assert_array_equal(whole, early)
    for one, other in zip(all_at_once, later):
        np.testing.assert_array_equal(one, other)


def test_the_peak_counts_micro_batches_that_keep_something() -> None:
    stage = LocalStage(Hidden(), StageOptions(1))
    shape = (6, WIDTH)
    for number in range(3):
        stage.forward(task(number))
    stage.backward_input(0, np.ones(shape), {})
    stage.forward(task(3))
    assert stage.peak == 4  # the first keeps what its weights need
    stage.backward_weight(0)
    stage.backward(1, np.ones(shape), {})
    stage.forward(task(4))
    assert stage.peak == 4
    stage.begin()
    assert stage.peak == 0
    with pytest.raises(KeyError):
        stage.backward(2, np.ones(shape), {})


def test_dropout_is_decided_by_step_batch_and_micro_batch_alone() -> None:
    stage = LocalStage(Dropped(), StageOptions(1, seed=5))
    x = data(6)[0]

    def drawn(step: int, number: int, earlier: int = 0) -> list[Any]:
        result = stage.forward(Task(step, number, x, earlier=earlier))
        return result.outputs.tolist()  # type: ignore[no-any-return]

    first = drawn(3, 1)
    assert drawn(3, 2) != first
    assert drawn(4, 1) != first
    assert drawn(3, 1, 1) != first
    assert drawn(3, 1) == first
    assert drawn(3, 1, 1) == drawn(3, 1, 1)


def test_prediction_is_in_evaluation_mode_and_keeps_nothing() -> None:
    stage = LocalStage(Normed(), StageOptions(1))
    stage.module.norm.eval()
    before = stage.module.state_dict()
    first, second = stage.predict(task()), stage.predict(task(step=1))
    np.testing.assert_array_equal(first.outputs, second.outputs)
    assert stage.peak == 0
    assert (stage.module.training, stage.module.norm.training) == (True, False)
    assert all((before[name] == array).all() for name, array in stage.module.state_dict().items())


def test_the_modes_come_back_after_a_failure() -> None:
    stage = LocalStage(Hidden(), StageOptions(1))
    with pytest.raises(Exception, match=r"shape|dimension|match"):
        stage.predict(Task(0, 0, np.ones((2, 3))))
    assert stage.module.training


def test_the_last_stage_gives_the_loss_and_weighs_its_gradient() -> None:
    x, y = data(6)
    stage = LocalStage(Head(), StageOptions(1), loss=F.cross_entropy)
    result = stage.forward(Task(0, 0, x, y, weight=0.25))
    assert result.outputs is None
    whole = F.cross_entropy(stage.module(psf.tensor(x)), y)
    assert result.loss == float(whole.data)
    stage.backward(0, None, {})
    weighed = gradients(stage)[0].copy()
    stage.begin()
    whole.backward()
    np.testing.assert_allclose(weighed, gradients(stage)[0] * 0.25, rtol=1e-12)


def test_the_first_stage_gives_no_gradient_of_its_input() -> None:
    stage = LocalStage(Hidden(), StageOptions(0, needs_input_gradient=False))
    outputs = stage.forward(task()).outputs
    assert stage.backward(0, np.ones_like(outputs), {}).outputs is None


def test_gradients_of_what_was_popped_go_back() -> None:
    stage = LocalStage(Across(), StageOptions(1))
    outputs = stage.forward(task(skips={"lower": np.ones((6, WIDTH))})).outputs
    seed = np.cos(outputs)
    np.testing.assert_array_equal(stage.backward(0, seed, {}).skips["lower"], seed)


def test_gradients_have_the_structure_of_what_came_in() -> None:
    stage = LocalStage(Middle(), StageOptions(1))
    rng = np.random.default_rng(0)
    given = {"x": rng.normal(size=(4, WIDTH)), "ids": np.arange(4), "unused": np.ones(4), "scale": 2.0}
    hidden, (ids, nothing), (x, _) = stage.forward(Task(0, 0, given)).outputs
    assert nothing is None
    np.testing.assert_array_equal(ids, given["ids"])
    found = stage.backward(0, (np.ones_like(hidden), [None, None], (np.ones_like(x), None)), {}).outputs
    assert found["x"].shape == (4, WIDTH)
    assert [found[name] for name in ("ids", "unused", "scale")] == [None, None, None]


def test_an_output_that_nobody_uses_at_all() -> None:
    stage = LocalStage(Hidden(), StageOptions(1))
    stage.forward(task())
    assert stage.backward(0, None, {}).outputs is None
    assert gradients(stage) == [None, None]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_sixteen_bits_inside_and_float32_in_the_loss(dtype: str) -> None:
    seen: list[Any] = []

    def loss(outputs: psf.Tensor, targets: Any) -> psf.Tensor:
        seen.extend([outputs.dtype, targets.dtype])
        return ((outputs - targets) ** 2).mean()

    kind = psf.backend.dtype_from_name(dtype)
    stage = LocalStage(Hidden(), StageOptions(1, dtype=kind), loss=loss)
    stage.forward(task(targets=np.ones((6, WIDTH))))
    found = stage.backward(0, None, {}).outputs
    assert seen == [np.float32, np.float32]
    assert found.dtype == kind
    assert {each.dtype for each in gradients(stage)} == {np.dtype(np.float32)}
    assert {each.dtype for each in stage.module.parameters()} == {kind}


def test_prediction_has_the_dtypes_of_training() -> None:
    stage = LocalStage(Across(), StageOptions(1, dtype=np.dtype(np.float32)))
    given = task(skips={"lower": np.ones((6, WIDTH))})
    assert stage.predict(given).outputs.dtype == stage.forward(given).outputs.dtype == np.float32


def test_a_loss_must_be_one_number() -> None:
    stage = LocalStage(Head(), StageOptions(1), loss=lambda outputs, targets: outputs)
    with pytest.raises(ArgumentError, match="one number, the mean over a micro-batch"):
        stage.forward(task(targets=np.ones(6)))


def test_going_back_drops_what_a_step_has_begun() -> None:
    stage = LocalStage(Hidden(), StageOptions(1), optim.Adam(lr=0.1).rule)

    def step() -> Any:
        outputs = stage.forward(task()).outputs
        stage.backward(0, np.ones_like(outputs), {})
        stage.update()
        return stage.module.state_dict()["layer.weight"]

    step()
    snapshot = stage.snapshot()
    once = step()
    stage.forward(task(1))
    stage.restore(snapshot)
    assert not stage._kept
    np.testing.assert_array_equal(step(), once)


@pytest.mark.parametrize("halves", [False, True])
@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("precision", [None, "float16", "bfloat16"])
def test_what_is_on_a_device_stays_there(precision: str | None, recompute: bool, halves: bool) -> None:
    """The device refuses to be converted silently."""
    with strict_devices("gpu-0") as (gpu,):
        dtype = None if precision is None else backend.dtype_from_name(precision)
        options = StageOptions(1, recompute=recompute, dtype=dtype)
        module = nn.Sequential(nn.Linear(WIDTH, CLASSES), nn.BatchNorm1d(CLASSES), nn.Dropout(0.5))
        rule = optim.Adam(lr=1e-2).rule
        stage = LocalStage(module.to("gpu-0"), options, rule, F.cross_entropy)
        before = stage.module.state_dict()
        for number in range(2):
            x, y = map(gpu.to_device, data(6, number))
            result = stage.forward(Task(0, number, x.astype(np.float32), y, weight=0.5))
            assert isinstance(result.loss, float)
            if halves:
                result = stage.backward_input(number, None, {})
                stage.backward_weight(number)
            else:
                result = stage.backward(number, None, {})
            assert type(result.outputs) is gpu.ndarray
        assert np.isfinite(stage.learning.power())
        snapshot = stage.snapshot()
        stage.update(0.5)
        after = stage.module.state_dict()
        assert bool((before["0.weight"] != after["0.weight"]).any())
        stage.restore(snapshot)
        assert bool((before["0.weight"] == stage.module.state_dict()["0.weight"]).all())
        assert type(stage.predict(Task(0, 2, x.astype(np.float32))).outputs) is gpu.ndarray
