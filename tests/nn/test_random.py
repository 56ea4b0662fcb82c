"""Random numbers by one seed: on the host, on a device, saved and restored."""

import json

import numpy as np
import pytest

import psframework.nn.functional as F
from psframework.autograd import recompute, tensor
from psframework.nn import manual_seed
from psframework.nn.random import DeviceGenerator, apart, generator, get_state, set_state
from psframework.testing.strict_device import strict_devices


@pytest.fixture
def device():
    with strict_devices("gpu-0") as [device]:
        yield device


def test_states_are_plain_and_repeat() -> None:
    manual_seed(5)
    generator().random(3)
    state = json.loads(json.dumps(get_state()))
    first = generator().random(4)
    set_state(state)
    np.testing.assert_array_equal(generator().random(4), first)


def test_generators_by_place(device) -> None:
    there = tensor(device.to_device(np.zeros(2)))
    assert generator(np.zeros(1)) is generator() is generator(tensor(np.zeros(1)))
    assert isinstance(generator(there), DeviceGenerator)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_numbers_of_a_device_are_uniform_and_independent(device, dtype) -> None:
    drawn = DeviceGenerator(np.random.default_rng(0), device.zeros(1))
    numbers = drawn.random((200, 500), dtype)
    assert type(numbers) is device.ndarray and numbers.dtype == dtype
    host = device.asnumpy(numbers)
    assert host.min() >= 0 and host.max() < 1
    counts = np.histogram(host, 20, (0, 1))[0]
    assert ((counts - 5000) ** 2 / 5000).sum() < 45  # chi-square of 19 degrees: 0.1 % are above 43.8
    correlation = np.corrcoef(host.reshape(-1)[:-1], host.reshape(-1)[1:])[0, 1]
    assert abs(correlation) < 0.015
    assert not np.array_equal(host, device.asnumpy(drawn.random((200, 500), dtype)))


def test_the_first_numbers_are_splitmix64s() -> None:
    """By a loop in Python's integers."""
    seed = int(np.random.default_rng(3).integers(0, 1 << 64, dtype=np.uint64))
    mask, expected = (1 << 64) - 1, []
    for i in range(1, 4):
        z = (seed + i * 0x9E3779B97F4A7C15) & mask
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
        expected.append(((z ^ (z >> 31)) >> 11) * 2.0**-53)
    drawn = DeviceGenerator(np.random.default_rng(3), np.zeros(1))
    np.testing.assert_array_equal(drawn.random((3,)), expected)


def test_masks_on_a_device_follow_the_seed(device) -> None:
    x = tensor(device.to_device(np.ones((50, 40), np.float32)))

    def mask() -> np.ndarray:
        return device.asnumpy(F.dropout(x, 0.25).data) != 0

    manual_seed(1)
    first, second = mask(), mask()
    manual_seed(1)
    np.testing.assert_array_equal(mask(), first)
    assert first.mean() == pytest.approx(0.75, abs=0.05) and not np.array_equal(first, second)


def test_recompute_draws_the_same_mask_on_a_device(device) -> None:
    x = tensor(device.to_device(np.ones((20, 20), np.float32)), True)
    out = recompute(lambda x: F.dropout(F.dropout(x * 1.0, 0.5), 0.5), x)
    out.sum().backward()
    np.testing.assert_array_equal(device.asnumpy(x.grad), device.asnumpy(out.data))
    assert len(np.unique(device.asnumpy(x.grad))) == 2


def test_what_is_drawn_apart_leaves_the_seed_alone() -> None:
    manual_seed(3)
    expected = generator().random(5)
    manual_seed(3)
    with apart():
        generator().random(7)
    np.testing.assert_array_equal(generator().random(5), expected)
