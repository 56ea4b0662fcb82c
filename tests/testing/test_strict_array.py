import copy
import pickle

import numpy as np
import pytest

from psframework.testing.strict_device import strict_devices


@pytest.fixture
def device():
    with strict_devices("array-0") as (device,):
        yield device


def test_ways_out_are_closed(device):
    x = device.to_device(np.ones(3))
    for way, message in (
        (lambda: np.asarray(x), "implicit conversion"),
        (lambda: np.sum(x), r"np\.sum was called on an array of array-0"),
        (lambda: np.concatenate([x, x]), r"np\.concatenate was called"),
        (lambda: np.from_dlpack(x), "can't be lent"),
        (x.__dlpack_device__, "can't be lent"),
        (lambda: pickle.dumps(x), "can't be pickled"),
        (lambda: {x: 1}, "unhashable"),
        (lambda: memoryview(x), "bytes-like"),
        (lambda: x - [1.0, 2.0, 3.0], "unsupported operand"),
        (lambda: x.sum(initial=1), "does not take initial="),
        (lambda: x.max(0, None, True, 3), "does not take 4 arguments"),
    ):
        with pytest.raises(TypeError, match=message):
            way()
    for name in ("newbyteorder", "ctypes", "setflags", "__array_interface__"):
        with pytest.raises(AttributeError):
            getattr(x, name)
    assert not hasattr(x.flags, "writeable") and x.flags.c_contiguous


def test_what_waits_for_the_device_is_counted(device):
    x = device.to_device(np.ones((2, 2)))
    _ = (x * 2).sum(axis=0)[1:], x.reshape(-1).astype("float32"), device.where(x > 1, x, 0)
    x[x > 3] = 0.0
    assert device.synchronisations == 0
    waits = [
        lambda: float(x[0, 0]),
        lambda: int(x[0, 0]),
        lambda: bool(x[0, 0] > 0),
        lambda: complex(x[0, 0]),
        x[0, 0].item,
        x.tolist,
        x.nonzero,
        lambda: x[x > 0],
        lambda: device.asnumpy(x),
        lambda: device.unique(x),
        lambda: range(device.to_device(np.array(3))),
    ]
    for count, wait in enumerate(waits, 1):
        wait()
        assert device.synchronisations == count


def test_operators(device):
    host = np.array([1, 2, 3])
    x = device.to_device(host)
    np.testing.assert_array_equal(
        device.asnumpy(np.float64(2) * -x % 4 + 1 // x), 2.0 * -host % 4 + 1 // host
    )
    np.testing.assert_array_equal(device.asnumpy((x << 1) | (x >= 2)), (host << 1) | (host >= 2))
    assert [part.tolist() for part in divmod(x, 2)] == [[0, 1, 1], [1, 0, 1]]
    x @= device.to_device(np.eye(3, dtype=int))
    assert x.tolist() == [1, 2, 3] and len(x) == 3 and [int(v) for v in x] == [1, 2, 3]


def test_copies(device):
    x = device.to_device(np.ones(2))
    for other in (copy.copy(x), copy.deepcopy([x])[0]):
        other += 1
    assert x.tolist() == [1, 1]
