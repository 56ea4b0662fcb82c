"""Rules on arrays of another library: everything stays on the device, with the bits of the host."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from psframework.autograd.sparse import SparseRows
from psframework.autograd.tensor import Tensor
from psframework.optim import (
    FTRL,
    LAMB,
    SGD,
    Adagrad,
    Adam,
    AdamW,
    GradScaler,
    Optimizer,
    RMSprop,
    RowWiseAdagrad,
    SGDRule,
    apply_blocks,
    clip_grad_norm_,
)
from psframework.testing.strict_device import StrictDevice, strict_devices

OPTIMIZERS: list[Callable[..., Optimizer]] = [
    lambda p: SGD(p, momentum=0.9, nesterov=True),
    lambda p: SGD(p, maximize=True),
    lambda p: Adam(p, weight_decay=0.1, amsgrad=True),
    AdamW,
    lambda p: Adagrad(p, weight_decay=0.1),
    lambda p: RowWiseAdagrad(p, weight_decay=0.1),
    lambda p: RMSprop(p, centered=True, momentum=0.5),
    lambda p: FTRL(p, l1=0.1, beta=1.0, lr_power=-0.6),
    lambda p: LAMB(p, weight_decay=0.1),
    lambda p: LAMB(p, adapt=False),
]
every_optimizer = pytest.mark.parametrize("make", OPTIMIZERS, ids=lambda m: m(None).rule.name)


def tensors(device: StrictDevice, seed: int, dtype: Any) -> tuple[Tensor, Tensor]:
    """The same values on the host and on the device."""
    host = np.random.default_rng(seed).standard_normal((30, 4)).astype(dtype)
    there: Any = device.to_device(host)
    return Tensor(host, requires_grad=True), Tensor(there, requires_grad=True)


@every_optimizer
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_arrays_of_a_device_are_left_to_graphs_that_hold_them(
    make: Callable[..., Optimizer], dtype: Any
) -> None:
    with strict_devices("optim-0") as (device,):
        host, there = tensors(device, 0, dtype)
        mine, theirs = make([host]), make([there])
        for step in (1, 2):
            g_host, g_there = tensors(device, step, dtype)
            host.grad, before, old = g_host.data, there.data, there.numpy().copy()
            mine.step()
            theirs.apply({there: g_there.data})
            assert type(there.data) is device.ndarray and there.data is not before
            np.testing.assert_array_equal(Tensor(before).numpy(), old)
        tolerance = (2e-3 if dtype == np.float16 else 2e-4, 1e-6) if mine.rule.name == "lamb" else (0, 0)
        np.testing.assert_allclose(there.numpy(), host.data, *tolerance)


@every_optimizer
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("kernels", [False, True], ids=["numpy's way", "fused"])
def test_a_step_on_a_device_is_the_hosts(make: Callable[..., Optimizer], dtype: Any, kernels: bool) -> None:
    with strict_devices("optim-0", fused=kernels) as (device,):
        host, there = tensors(device, 0, dtype)
        mine, theirs = make([host]), make([there])
        for step in (1, 2, 3):
            g_host, g_there = tensors(device, step, dtype)
            host.grad, there.grad = g_host.data, g_there.data
            mine.step()
            theirs.step()
        assert type(there.data) is device.ndarray
        # Kernels round elsewhere, and FTRL subtracts roots that hardly differ; LAMB's rate is rounded later.
        close = 2e-3 if dtype == np.float16 else 2e-4
        tolerance = (close, 1e-6) if kernels or mine.rule.name == "lamb" else (0, 0)
        np.testing.assert_allclose(there.numpy(), host.data, *tolerance)
        saved = theirs.state_dict()
        for name, slot in mine.state_dict()["state"][0].items():
            if name != "step":
                assert type(saved["state"][0][name]) is device.ndarray
                np.testing.assert_allclose(saved["state"][0][name].host, slot, *tolerance)
        theirs.load_state_dict(mine.state_dict())  # from one device to another


@pytest.mark.parametrize("make", [SGD, Adagrad, RowWiseAdagrad, FTRL, Adam], ids=lambda m: m.__name__)
def test_a_sparse_gradient_on_a_device(make: type[Optimizer]) -> None:
    with strict_devices("optim-0") as (device,):
        host, there = tensors(device, 0, np.float32)
        rows, values = np.array([7, 2, 7]), np.ones((3, 4), np.float32)
        host.grad = SparseRows(rows, values, (30, 4))
        there.grad = SparseRows(device.to_device(rows), device.to_device(values), (30, 4))
        for tensor in (host, there):
            make([tensor]).step()
        np.testing.assert_array_equal(there.numpy(), host.data)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_means_and_copies_of_a_shard(dtype: Any) -> None:
    with strict_devices("optim-0") as (device,):
        host, there = tensors(device, 0, dtype)
        out: Any = device.to_device(np.empty_like(host.data))
        pairs = [tensors(device, seed, dtype) for seed in (1, 2)]
        rule = SGDRule(momentum=0.9)
        states = [rule.init_state(host.data), rule.init_state(there.data)]
        apply_blocks(rule, host.data, [h.data for h, _ in pairs], states[0], 1)
        apply_blocks(rule, there.data, [t.data for _, t in pairs], states[1], 1, out)
        np.testing.assert_array_equal(there.numpy(), host.data)
        np.testing.assert_array_equal(out.host, host.data)


def test_mixing_is_noticed() -> None:
    with strict_devices("optim-0") as (device,):
        parameter: Any = device.to_device(np.zeros(3, np.float32))
        with pytest.raises(TypeError, match="NumPy array was given to optim-0"):
            SGDRule().update(parameter, np.zeros(3, np.float32), {}, 1)


def test_scaled_and_clipped_on_a_device() -> None:
    with strict_devices("optim-0") as (device,):
        host, there = tensors(device, 0, np.float16)
        scaler = GradScaler(init_scale=8.0)
        for tensor, gradient in zip((host, there), tensors(device, 1, np.float16)):
            tensor.grad = gradient.data * 8
            optimizer = SGD([tensor], lr=1.0)
            scaler.unscale_(optimizer)
            assert tensor.grad.dtype == np.float32
            clip_grad_norm_([tensor], 1.0)
            assert scaler.step(optimizer)
        np.testing.assert_array_equal(there.numpy(), host.data)
