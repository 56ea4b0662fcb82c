"""Loss scaling: torch's scale after each step, no step after an overflow, and what float16 alone loses."""

import math
from typing import Any

import numpy as np
import pytest

import psframework.nn.functional as F
from psframework.autograd.sparse import SparseRows
from psframework.autograd.tensor import Tensor
from psframework.errors import ArgumentError
from psframework.optim import SGD, Adam, GradScaler, Optimizer, clip_grad_norm_


def parameter(value: float = 1.0, dtype: Any = np.float32) -> Tensor:
    return Tensor(np.full(3, value, dtype), requires_grad=True)


def take_step(scaler: GradScaler, optimizer: Optimizer, gradient: float) -> bool:
    (p,) = optimizer.param_groups[0]["params"]
    p.grad = np.full(3, gradient * scaler.get_scale(), np.float32)
    taken = scaler.step(optimizer)
    scaler.update()
    return taken


def test_a_scaled_loss_steps_as_the_loss_itself() -> None:
    one, other = parameter(), parameter()
    scaler, mine, theirs = GradScaler(), SGD([one], lr=0.1), SGD([other], lr=0.1)
    loss = (one * one).sum()
    assert scaler.scale(loss).item() == 3 * 65536
    assert [x.item() for x in scaler.scale([loss, (loss,)[0]])] == [3 * 65536] * 2
    scaler.scale(loss).backward()
    (other * other).sum().backward()
    assert scaler.step(mine)
    theirs.step()
    np.testing.assert_array_equal(one.data, other.data)


@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan])
def test_an_overflow_skips_the_step_and_halves_the_scale(bad: float) -> None:
    p = parameter()
    scaler, optimizer = GradScaler(init_scale=8.0), Adam([p])
    assert take_step(scaler, optimizer, 1.0)
    before = p.data.copy()
    assert not take_step(scaler, optimizer, bad)
    np.testing.assert_array_equal(p.data, before)
    assert optimizer.state_dict()["state"][0]["step"] == 1
    assert scaler.get_scale() == 4.0


def test_one_optimizer_that_overflows_does_not_stop_the_other() -> None:
    p, q = parameter(), parameter()
    scaler, first, second = GradScaler(8.0), SGD([p], lr=1.0), SGD([q], lr=1.0)
    p.grad, q.grad = np.full(3, np.inf, np.float32), np.full(3, 8, np.float32)
    assert (scaler.step(first), scaler.step(second)) == (False, True)
    np.testing.assert_array_equal(q.data, 0)
    scaler.update()
    assert scaler.get_scale() == 4.0


@pytest.mark.oracle
def test_the_scale_is_torchs() -> None:
    torch = pytest.importorskip("torch")
    options: dict[str, Any] = {
        "init_scale": 2.0**125, "growth_factor": 4.0, "backoff_factor": 0.25, "growth_interval": 2,
    }  # fmt: skip
    theirs, p = torch.amp.GradScaler("cpu", **options), parameter()
    mine, optimizer = GradScaler(**options), SGD([p], lr=0.0)
    weight = torch.nn.Parameter(torch.ones(3))
    other = torch.optim.SGD([weight], lr=0.0)
    theirs.scale(weight.sum())
    for gradient in [0, 0, 0, 0, math.inf, 0, math.nan, 0, 0, 0, 0]:
        take_step(mine, optimizer, gradient)
        weight.grad = torch.full((3,), gradient * theirs.get_scale())
        theirs.step(other)
        theirs.update()
        assert mine.get_scale() == theirs.get_scale()
        assert mine.state_dict() == theirs.state_dict()


def test_half_precision_gradients_are_float32_once_unscaled() -> None:
    p = parameter(dtype=np.float16)
    scaler, optimizer = GradScaler(), SGD([p], lr=2.0**12)
    p.grad = np.full(3, 2.0**-8, np.float16)
    scaler.unscale_(optimizer)
    assert p.grad.dtype == np.float32
    np.testing.assert_array_equal(p.grad, 2.0**-24)
    assert clip_grad_norm_([p], 1.0) == pytest.approx(2.0**-24 * math.sqrt(3))
    scaler.step(optimizer)
    np.testing.assert_array_equal(optimizer.state_dict()["state"][0]["master"], 1 - 2.0**-12)


def test_sparse_gradients_are_summed_in_float32() -> None:
    """60,000 twice is no float16, but a gradient of 1.83 is, scaled by 65536."""
    p = Tensor(np.zeros((9, 2), np.float16), requires_grad=True)
    p.grad = SparseRows(np.array([4, 4]), np.full((2, 2), 6e4, np.float16), (9, 2))
    scaler, optimizer = GradScaler(), SGD([p], lr=1.0)
    assert scaler.step(optimizer)
    np.testing.assert_allclose(p.data[4], -12e4 / 65536, rtol=1e-3)
    assert not p.data[:4].any()


def test_gradients_that_cannot_be_written_and_that_are_missing() -> None:
    p, q = parameter(), parameter()
    p.grad = np.broadcast_to(np.float32(65536), (3,))
    scaler, optimizer = GradScaler(), SGD([p, q], lr=1.0)
    assert scaler.step(optimizer)
    np.testing.assert_array_equal(p.data, 0)
    np.testing.assert_array_equal(q.data, 1)


def test_without_scaling_small_gradients_vanish() -> None:
    """A gradient of 1e-8 is 0 in float16."""
    moved = []
    for enabled in (False, True):
        p = parameter(dtype=np.float16)
        scaler, optimizer = GradScaler(enabled=enabled), SGD([p], lr=1e7)
        for _ in range(2):
            optimizer.zero_grad()
            loss = (p * np.full(3, 1e-4, np.float16)).astype(np.float32).sum() * 1e-4
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        moved.append(1 - p.data[0])
    assert moved[0] == 0
    assert moved[1] == pytest.approx(0.2, rel=0.01)


def train(dtype: Any, scaler: GradScaler) -> float:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((200, 8)).astype(dtype)
    y = (np.abs(x[:, 0]) > np.abs(x[:, 1])).astype(np.int64)
    layers = [(16, 8), (16,), (2, 16), (2,)]
    w1, b1, w2, b2 = parameters = [
        Tensor((0.3 * rng.standard_normal(shape)).astype(dtype), requires_grad=True) for shape in layers
    ]
    optimizer, loss = Adam(parameters, lr=0.02), math.inf
    for _ in range(150):
        optimizer.zero_grad()
        hidden = F.relu(F.linear(Tensor(x), w1, b1))
        output = F.cross_entropy(F.linear(hidden, w2, b2).astype(np.float32), y)
        scaler.scale(output).backward()
        scaler.unscale_(optimizer)
        clip_grad_norm_(parameters, 5.0)
        scaler.step(optimizer)
        scaler.update()
        loss = output.item()
    return loss


def test_mixed_precision_reaches_the_loss_of_float32() -> None:
    exact = train(np.float32, GradScaler(enabled=False))
    assert exact < 0.15
    scaler = GradScaler(growth_interval=20)
    assert train(np.float16, scaler) == pytest.approx(exact, abs=0.02)
    assert scaler.get_scale() >= 2.0**14


def test_order_of_calls() -> None:
    p = parameter()
    scaler, optimizer = GradScaler(), SGD([p])
    with pytest.raises(ArgumentError, match=r"no optimizer was stepped.*scaler\.step"):
        scaler.update()
    scaler.unscale_(optimizer)
    with pytest.raises(ArgumentError, match="unscaled its gradients already"):
        scaler.unscale_(optimizer)
    scaler.step(optimizer)
    with pytest.raises(ArgumentError, match="unscale_: this optimizer has stepped already"):
        scaler.unscale_(optimizer)
    with pytest.raises(ArgumentError, match=r"step: this optimizer has stepped already: call scaler\.update"):
        scaler.step(optimizer)
    scaler.update(2.0)
    assert scaler.get_scale() == 2.0
    scaler.step(optimizer)
    with pytest.raises(ArgumentError, match=r"takes a Tensor.* not float"):
        scaler.scale(1.0)


def test_disabled_it_does_nothing() -> None:
    p = parameter()
    scaler, optimizer = GradScaler(enabled=False), SGD([p], lr=1.0)
    assert scaler.scale(p) is p
    assert not scaler.is_enabled() and scaler.get_scale() == 1.0
    p.grad = np.ones(3, np.float32)
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()
    np.testing.assert_array_equal(p.data, 0)
    assert scaler.state_dict() == {}


def test_state_survives_a_round_trip() -> None:
    scaler, optimizer = GradScaler(8.0, 3.0, 0.25, 5), SGD([parameter()])
    take_step(scaler, optimizer, 1.0)
    other = GradScaler()
    other.load_state_dict(scaler.state_dict())
    assert other.state_dict() == scaler.state_dict()
    assert other.get_scale() == 8.0 and other.growth_interval == 5
    with pytest.raises(ArgumentError, match=r"needs 'scale'.*disabled"):
        other.load_state_dict({})


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"growth_factor": 1.0}, "growth_factor must be above 1"),
        ({"backoff_factor": 1.0}, "backoff_factor must be in"),
        ({"init_scale": 0.0}, "init_scale and growth_interval must be above 0"),
        ({"growth_interval": 0}, "init_scale and growth_interval must be above 0"),
    ],
)
def test_bad_options_are_refused(options: dict[str, float], words: str) -> None:
    with pytest.raises(ArgumentError, match=words):
        GradScaler(**options)  # type: ignore[arg-type]
