"""What compressing hooks have in common: counting, state, and where they compute."""

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hook_runs import bucket, gradients, run, starts

import psframework as psf
from psframework.ddp.compression import aside
from psframework.ddp.hooks import BF16, FP16, HookStats, PowerSGD, TopK
from psframework.optim import GradScaler
from psframework.testing.strict_device import strict_devices

HOOKS: list[Callable[..., Any]] = [
    FP16,
    BF16,
    lambda **options: PowerSGD(2, start=2, **options),
    lambda **options: TopK(0.05, **options),
]
every_hook = pytest.mark.parametrize("make", HOOKS, ids=lambda make: type(make()).__name__)


@every_hook
def test_a_loaded_state_goes_on_with_the_same_bits(make: Callable[[], Any]) -> None:
    whole = run(make, steps=range(6))
    before = run(make, steps=range(3))
    states = iter([each.hook.state_dict() for each in before])

    def loaded() -> Any:
        hook = make()
        hook.load_state_dict(next(states))
        return hook

    after = run(loaded, steps=range(3, 6))
    for mine, theirs in zip(whole[0].averages[3:], after[0].averages, strict=True):
        assert mine.tobytes() == theirs.tobytes()


@every_hook
def test_a_state_of_something_else_is_refused(make: Callable[[], Any]) -> None:
    hook = make()
    with pytest.raises(psf.ArgumentError, match=f"state of {type(hook).__name__} has .*residuals"):
        hook.load_state_dict({"other": 1})


@every_hook
def test_from_run_to_run_the_bits_are_the_same(make: Callable[[], Any]) -> None:
    once, again = run(make), run(make)
    assert [each.tobytes() for each in once[0].averages] == [each.tobytes() for each in again[0].averages]


@every_hook
def test_a_group_of_one(make: Callable[[], Any]) -> None:
    (alone,) = run(make, size=1)
    arrived = np.sum(alone.averages, axis=0, dtype=np.float64)
    np.testing.assert_allclose(arrived + alone.residual(arrived.size), alone.gradients, atol=1e-5)


@every_hook
def test_elements_between_gradients_stay_0(make: Callable[[], Any]) -> None:
    for each in run(make)[0].averages:
        for start in starts()[1:]:
            assert not each[start - 2 : start].any()


def test_stats() -> None:
    assert HookStats().ratio == 1
    assert HookStats(1, 25, 100).ratio == 0.25


class Alone:
    """A group of one for arrays of any device."""

    rank, size = 0, 1

    async def all_reduce(self, array: Any, op: Any) -> Any:
        return array

    async def all_gather(self, array: Any) -> Any:
        return array[None]


@every_hook
async def test_residuals_follow_the_scale_of_a_scaler(make: Callable[..., Any]) -> None:
    """Gradients that come scaled leave as those that don't, whatever the scale was a step before."""
    scaler = GradScaler(init_scale=4.0)
    plain, scaled = make(), make(scaler=scaler)
    for step, scale in enumerate([4.0, 1024.0, 2.0, 2.0, 16.0]):
        scaler.update(scale)
        expected = gradients(np.float32, 0, step)
        given = bucket(expected * np.float32(scale), Alone())
        await plain(bucket(expected, Alone()))
        await scaled(given)
        np.testing.assert_allclose(given.buffer / scale, expected, rtol=1e-3, atol=1e-5)
        if step == 2:
            state = scaled.state_dict()
            scaled = make(scaler=scaler)
            scaled.load_state_dict(state)
    for name, residual in plain.residuals().items():
        np.testing.assert_allclose(scaled.residuals()[name], residual, rtol=1e-3, atol=1e-5)


@every_hook
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
async def test_on_a_device_the_arithmetic_stays_there(make: Callable[[], Any], dtype: Any) -> None:
    with strict_devices("hook-0") as (device,):
        here, there = make(), make()
        for step in range(4):
            host = gradients(dtype, 0, step)
            array: Any = device.to_device(host)
            await here(bucket(host, Alone()))
            given = bucket(host, Alone())
            given.buffer = array
            await there(given)
            np.testing.assert_allclose(device.asnumpy(array), host, rtol=1e-3, atol=1e-5)
        other = make()
        other.load_state_dict(there.state_dict())
        given.buffer = device.to_device(gradients(dtype, 0, 9))
        await other(given)


async def test_large_buckets_are_computed_in_a_thread() -> None:
    small, large = (bucket(np.zeros(size, np.float32), None) for size in (1 << 14, 1 << 15))
    assert await aside(small, threading.get_ident) == threading.get_ident()
    assert await aside(large, threading.get_ident) != threading.get_ident()
