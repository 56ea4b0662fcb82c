import numpy as np
import pytest

import psframework as psf
from psframework import backend
from psframework.autograd.ops.transfer import to
from psframework.errors import ArgumentError
from psframework.testing.strict_device import strict_devices


@pytest.fixture
def devices():
    with strict_devices("to-0", "to-1") as devices:
        yield devices


def test_the_gradient_travels_back(devices):
    first, second = devices
    x = psf.tensor(np.ones((2, 3), np.float32), True)
    there = to(x, "to-0")
    further = there.to(second.device, np.float64) * 3
    assert (there.device, further.device) == (first.device, second.device)
    further.sum().backward()
    assert type(x.grad) is np.ndarray and x.grad.dtype == np.float32
    np.testing.assert_array_equal(x.grad, np.full((2, 3), 3))


def test_what_a_target_may_be(devices):
    x = psf.tensor([1.0, 2.0])
    like = x.to("to-0", "float16")
    assert like.dtype == np.float16 and x.to(like).device == like.device and x.to(like).dtype == np.float16
    for target in ("float16", np.float16, np.dtype("float16")):
        assert x.to(target).dtype == np.float16 and x.to(target).device == backend.CPU
    assert x.to("bfloat16").dtype == backend.bfloat16
    assert to(np.ones(2), "to-0").device == devices[0].device


def test_nothing_to_do(devices):
    x = psf.tensor([1.0], True)
    assert x.to("cpu") is x and x.to(np.float64) is x and x.to(x) is x and x.cpu() is x
    copied = x.to("cpu", copy=True)
    assert not np.shares_memory(copied.data, x.data) and copied.node is not None
    there = x.to("to-0")
    assert there.to("to-0").data is there.data


def test_integers_carry_no_gradient():
    x = psf.tensor([1.5], True)
    assert not x.to(np.int64).requires_grad and x.to(np.int64).tolist() == [1]


@pytest.mark.parametrize(
    ("target", "dtype", "message"),
    [
        ("nowhere", None, "no device 'nowhere'"),
        (3, None, "a device, a dtype or a tensor, not 3"),
        (np.float16, np.float32, "two dtypes"),
        ("cpu", object, "not supported"),
        ("cpu", "float99", "a device, a dtype or a tensor, not 'float99'"),
        (None, None, "not None"),
    ],
)
def test_what_is_no_target(target, dtype, message):
    with pytest.raises(ArgumentError, match=message):
        psf.tensor([1.0]).to(target, dtype)
