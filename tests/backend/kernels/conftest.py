import pytest

from psframework import backend
from psframework.testing.strict_device import strict_devices


@pytest.fixture
def device():
    with strict_devices("kernels-0", fused=True) as (device,):
        yield device


@pytest.fixture
def kernels(device):
    return backend.fused(device.zeros(1))
