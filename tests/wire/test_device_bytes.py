"""Arrays on a device as parts: on the host only for those who ask, and then once."""

import numpy as np
import pytest

from psframework.testing.strict_device import strict_devices
from psframework.wire.device_bytes import DeviceBytes


@pytest.fixture
def gpu():
    with strict_devices("gpu-0") as (device,):
        yield device


@pytest.mark.parametrize("shape", [(), (3, 4), (0, 2)])
def test_bytes_on_the_host(gpu, shape):
    host = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    part = DeviceBytes(gpu.to_device(host))
    assert len(part) == host.nbytes and part.device == gpu.device and gpu.synchronisations == 0
    assert bytes(part) == part.host().tobytes() == host.tobytes()
    assert gpu.synchronisations == 1


def test_bytes_are_read_when_they_leave(gpu):
    array = gpu.to_device(np.zeros(3))
    part = DeviceBytes(array)
    array += 1
    assert bytes(part) == np.ones(3).tobytes()
    array += 1
    assert bytes(part) == np.ones(3).tobytes()
