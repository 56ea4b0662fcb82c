import numpy as np
import pytest

from psframework import backend
from psframework.errors import ArgumentError
from psframework.testing.strict_device import StrictDevice, strict_devices


@pytest.fixture
def device():
    with strict_devices("gpu-0") as (device,):
        yield device


def test_it_computes_as_numpy(device):
    x = device.to_device(np.arange(6.0).reshape(2, 3))
    y = device.exp(x[:, 1:]) * 2 - x.sum(axis=1, keepdims=True)
    assert backend.xp(y) is device
    host = np.arange(6.0).reshape(2, 3)
    np.testing.assert_array_equal(
        backend.asnumpy(y), np.exp(host[:, 1:]) * 2 - host.sum(axis=1, keepdims=True)
    )


def test_reductions_answer_arrays(device):
    x = device.to_device(np.ones(3))
    assert backend.is_array(x.sum()) and backend.is_array(device.add.reduce(x)) and float(x.sum()) == 3


def test_no_silent_conversion(device):
    x = device.to_device(np.ones(3))
    for mistake in (
        lambda: np.asarray(x),
        lambda: np.exp(x),
        lambda: np.ones(3) + x,
        lambda: x + np.ones(3),
        lambda: x[np.array([0])],
        lambda: device.exp(np.ones(3)),
        lambda: device.concatenate([x, np.ones(3)]),
    ):
        with pytest.raises(TypeError):
            mistake()


def test_devices_do_not_mix(device):
    other = StrictDevice("gpu-1")
    other.forget()
    with pytest.raises(TypeError, match="gpu-1 was mixed with one of gpu-0"):
        device.to_device(np.ones(3)) + other.to_device(np.ones(3))


def test_views_know_their_base(device):
    x = device.to_device(np.ones((2, 3)))
    assert x.base is None and x.T.base is x and x[0].base is x and x.T[0].base is x
    assert (x + 1).base is None


def test_changes_in_place(device):
    x = device.to_device(np.ones(3))
    same = x
    x += 1
    x[0] = 5
    device.multiply(x, 2, out=x)
    assert same is x and x.tolist() == [10, 4, 4]


def test_it_is_a_device_by_name(device):
    x = backend.to_device(np.arange(3.0), "gpu-0")
    assert backend.device_of(x) == backend.device("gpu-0") == device.device and str(device.device) == "gpu-0"
    assert backend.to_device(x, device.device) is x
    assert backend.asnumpy(x).tolist() == [0, 1, 2]
    with strict_devices("gpu-1") as (other,):
        assert backend.device_of(backend.to_device(x, "gpu-1")) == other.device
    with pytest.raises(ArgumentError, match="no device 'gpu-1'"):
        backend.device("gpu-1")
    assert not backend.is_array(other.to_device(np.ones(1)))


def test_what_cupy_lacks_is_refused(device):
    x = device.to_device(np.ones(3))
    for missing in (lambda: device.maximum.reduce(x), lambda: device.multiply.reduceat(x, device.arange(2))):
        with pytest.raises(NotImplementedError, match="is not supported"):
            missing()
    for missing in (lambda: device.errstate, lambda: device.block, lambda: device.lib.recfunctions):
        with pytest.raises(AttributeError):
            missing()
    for call in (
        lambda: device.add(x, 1, where=x > 0),
        lambda: device.add(x, [1, 2, 3]),
        lambda: device.sum(x, initial=1),
        lambda: device.add.reduce(x, initial=1),
    ):
        with pytest.raises(TypeError):
            call()


def test_packages_and_generators(device):
    x = device.to_device(np.arange(6.0).reshape(2, 3))
    assert device.linalg.norm(x).item() == np.linalg.norm(np.arange(6.0))
    assert device.lib.stride_tricks.as_strided(x, (2, 2), (8, 8)).base is x
    numbers = device.random.default_rng(3).random((2, 2), dtype="float32")
    np.testing.assert_array_equal(
        backend.asnumpy(numbers), np.random.default_rng(3).random((2, 2), dtype="float32")
    )
    with pytest.raises(AttributeError, match=r"no random\.Generator\.permutation"):
        device.random.default_rng(3).permutation(3)
