import numpy as np
import pytest

from psframework import backend
from psframework.errors import ArgumentError
from psframework.testing.strict_device import strict_devices


def test_values_become_arrays():
    assert backend.asnumpy([1, 2]).tolist() == [1, 2]
    assert backend.array_like([1, 2], np.ones(1, np.float32), np.dtype(np.int8)).dtype == np.int8


def test_arrays_go_where_others_are():
    with strict_devices("like-0", "like-1") as (first, second):
        there = first.to_device(np.ones(2))
        for value in ([1, 2], np.array([1, 2]), second.to_device(np.array([1, 2])), np.int64(5), 5):
            found = backend.array_like(value, there, np.dtype(np.float32))
            assert backend.device_of(found) == first.device and found.dtype == np.float32
        assert backend.array_like(there, np.ones(1)).tolist() == [1, 1]


def test_to_device():
    array = np.ones(3)
    assert backend.to_device(array, "cpu") is array and backend.asnumpy(array) is array
    with strict_devices("to-2"):
        there = backend.to_device(array, "to-2", stream=backend.stream("to-2"))
        back = backend.to_device(there, "cpu")
        assert type(back) is np.ndarray and back.tolist() == [1, 1, 1]
        assert backend.asnumpy(there, stream=backend.stream("to-2")).tolist() == [1, 1, 1]
    with pytest.raises(ArgumentError, match="no device 'to-2'"):
        backend.to_device(array, "to-2")
    with pytest.raises(ArgumentError, match="list is on no device"):
        backend.to_device([1], "cpu")


def test_pinned_memory_where_nothing_pins():
    array = backend.pinned_empty(3, "float32", "cpu")
    assert array.shape == (3,) and array.dtype == np.float32
    assert backend.pinned_empty((2, 2), np.int8).shape == (2, 2)
    assert backend.pinned_empty(np.int64(3), "bfloat16").shape == (3,)


@pytest.mark.parametrize(
    "array",
    [
        *(np.array(3.0), np.zeros((0, 3)), np.arange(12.0).reshape(3, 4)[:, ::-2]),
        *(np.asfortranarray(np.arange(6.0).reshape(2, 3)), np.arange(3, dtype=">f4")),
        *(np.broadcast_to(1.0, (2, 3)), np.array([True]), np.array([1j])),
    ],
)
def test_arrays_of_all_layouts_go_there_and_back(array):
    with strict_devices("all-0", "all-1"):
        back = backend.to_device(backend.to_device(backend.to_device(array, "all-0"), "all-1"), "cpu")
    np.testing.assert_array_equal(back, array)
    assert back.dtype == array.dtype and back.shape == array.shape and back.flags.writeable
