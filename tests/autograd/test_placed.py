import numpy as np
import pytest

import psframework as psf
from psframework import backend
from psframework.errors import ArgumentError
from psframework.testing.strict_device import strict_devices


def test_where_a_tensor_is():
    with strict_devices("placed-0") as (device,):
        x = psf.tensor([1.0, 2.0])
        there = x.to(device.device)
        assert x.device == psf.device("cpu") and there.device == psf.device("placed-0")
        assert there.cpu().device == backend.CPU and there.cpu().tolist() == [1, 2]
        assert repr(there) == "tensor([1., 2.], device=placed-0)" and repr(x) == "tensor([1., 2.])"


def test_a_tensor_is_made_where_the_task_allocates():
    with strict_devices("placed-1") as (device,):
        with psf.device("placed-1"):
            assert psf.tensor([1.0]).device == device.device
            assert psf.tensor(np.ones(2)).device == device.device
            assert psf.tensor([1.0], device="cpu").device == backend.CPU
        assert psf.tensor([1.0]).device == backend.CPU
        there = psf.tensor([1.0], device="placed-1")
        assert psf.tensor(there).device == device.device and psf.tensor(there, device="cpu").tolist() == [1]


def test_no_such_gpu():
    for move in (lambda x: x.cuda(999), lambda x: x.to("cuda:1000")):
        with pytest.raises(ArgumentError, match="no device 'cuda:"):
            move(psf.tensor([1.0]))
