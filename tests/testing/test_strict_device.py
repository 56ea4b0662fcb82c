import numpy as np
import pytest

from psframework import backend
from psframework.testing.strict_device import StrictDevice


@pytest.fixture
def device(monkeypatch):
    monkeypatch.setattr(backend, "_namespaces", dict(backend._namespaces))
    return StrictDevice("gpu-0")


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
