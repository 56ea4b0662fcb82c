import asyncio
import contextlib

import numpy as np
import pytest

import psframework as psf
from psframework import backend
from psframework.backend.devices import CPU, Device
from psframework.errors import ArgumentError
from psframework.testing.strict_device import strict_devices


def test_values():
    cpu = psf.device("cpu")
    assert (
        cpu == CPU == psf.device("cpu:0") == psf.device(cpu) and str(cpu) == "cpu" and hash(cpu) == hash(CPU)
    )
    assert (cpu.kind, cpu.index) == ("cpu", 0)
    with pytest.raises(AttributeError):
        cpu.index = 1


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("tpu", "no device 'tpu': the kinds are cpu, cuda"),
        ("cpu:1", "this machine has only cpu"),
        ("cpu:x", "write a number after the colon, as in 'cpu:0'"),
        ("cpu:", "write a number"),
        ("cuda:-1", "write a number"),
        ("cuda:999", "no device 'cuda:999': "),
        (Device("nowhere"), "no device 'nowhere'"),
        (7, "no device '7'"),
    ],
)
def test_what_is_no_device(name, message):
    with pytest.raises(ArgumentError, match=message):
        psf.device(name)


def test_a_device_that_nobody_knows_any_more():
    assert str(Device("gone")) == "gone"
    with pytest.raises(ArgumentError, match="no device 'gone'"):
        Device("gone").platform  # noqa: B018


def test_device_of():
    assert backend.device_of(np.ones(1)) is CPU and backend.device_of(np.float32(1)) == CPU
    assert backend.device_of(np.ones((2, 2)).view(np.matrix)) == CPU
    with pytest.raises(ArgumentError, match="list is on no device"):
        backend.device_of([1])


def test_the_current_device_nests_and_ends_with_its_block():
    with strict_devices("current-0", "current-1") as (first, second):
        assert backend.current_device() == CPU
        with first.device, contextlib.suppress(KeyError), second.device:
            assert backend.current_device() == second.device
            raise KeyError
        with first.device:
            with first.device:
                pass
            assert backend.current_device() == first.device
        assert backend.current_device() == CPU


async def test_tasks_do_not_disturb_each_other():
    async def hold(device):
        with device:
            await asyncio.sleep(0)
            return backend.current_device()

    with strict_devices("task-0", "task-1") as devices:
        found = await asyncio.gather(*(hold(device.device) for device in devices))
        assert found == [device.device for device in devices]
