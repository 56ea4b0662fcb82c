"""Arrays of any layout, byte order and device, as one axis on the host and back."""

import contextvars
import threading

import numpy as np
import pytest

import psframework as psf
from psframework import backend
from psframework.collective.arrays import HEAVY, lend, lend_to_write, name_of
from psframework.errors import ArgumentError
from psframework.testing.strict_device import StrictDevice, strict_devices


class Subclass(np.ndarray):
    """As memmaps are."""


LAYOUTS = {
    "contiguous": lambda: np.arange(12.0).reshape(3, 4),
    "column": lambda: np.arange(12.0).reshape(3, 4)[:, 0],
    "reversed": lambda: np.arange(12.0)[::-1],
    "fortran": lambda: np.asfortranarray(np.arange(12.0).reshape(3, 4)),
    "empty": lambda: np.empty((3, 0, 2)),
    "zero-d": lambda: np.array(5.0),
    "big-endian": lambda: np.arange(12.0).astype(">f8"),
    "unaligned": lambda: np.frombuffer(bytearray(b"x" + np.arange(3.0).tobytes()), np.float64, 3, 1),
    "bfloat16": lambda: np.arange(6).astype(backend.bfloat16).reshape(2, 3).T,
    "subclass": lambda: np.arange(4.0).view(Subclass),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_there_and_back(layout):
    array = LAYOUTS[layout]()
    before = np.array(array)
    lent = lend_to_write(array)
    flat = lent.load()
    assert flat.ndim == 1 and flat.flags.c_contiguous and flat.dtype.isnative
    assert lent.shape == array.shape and lent.dtype == backend.dtype_name(array.dtype)
    np.testing.assert_array_equal(flat, before.ravel())
    flat[...] = np.arange(len(flat), 0, -1)
    assert lent.written(flat, "result") == "result"
    np.testing.assert_array_equal(array, np.arange(len(flat), 0, -1).reshape(array.shape))


def test_a_contiguous_array_is_not_copied():
    array = np.zeros((3, 4))
    lent = lend_to_write(array)
    assert np.shares_memory(lent.load(), array) and lent.load() is lent.room()


@pytest.mark.parametrize("layout", ["column", "fortran", "big-endian"])
def test_what_is_only_lent_is_never_written_to(layout):
    array = LAYOUTS[layout]()
    array.flags.writeable = False
    flat = lend(array).load()
    assert not np.shares_memory(flat, array)
    room = lend(array).room()
    assert room.shape == flat.shape and room.dtype == flat.dtype and room.flags.writeable


def test_read_only_input_is_lent_and_not_written():
    array = np.arange(3.0)
    array.flags.writeable = False
    assert np.shares_memory(lend(array).load(), array)
    with pytest.raises(ArgumentError, match="read-only"):
        lend_to_write(array)


def test_tensors_are_their_data():
    tensor = psf.tensor([1.0, 2.0], requires_grad=True)
    lent = lend_to_write(tensor)
    lent.load()[:] = 7.0
    np.testing.assert_array_equal(tensor.data, [7.0, 7.0])


def test_numbers():
    np.testing.assert_array_equal(lend(np.float32(2.5)).load(), np.array([2.5], np.float32))
    with pytest.raises(ArgumentError, match=r"np\.array"):
        lend_to_write(np.float32(2.5))


@pytest.mark.parametrize("value", [3.0, [1, 2], None, "text", np.array(["a"]), np.array([None]),
                                   np.zeros(2, "M8[s]"), np.zeros(2, "i4,f4")], ids=repr)  # fmt: skip
def test_refused(value):
    for lending in (lend, lend_to_write):
        with pytest.raises(ArgumentError):
            lending(value)


def test_names_of_dtypes():
    for dtype in ("bool", "int8", "uint64", "float16", "complex64", backend.bfloat16):
        assert name_of(np.dtype(dtype)) == name_of(np.dtype(dtype)) == backend.dtype_name(dtype)
    assert name_of(np.dtype(">i4")) == "int32"


def test_only_long_copies_are_heavy():
    assert not lend(np.zeros((HEAVY, 1))).heavy, "nothing is copied"
    assert not lend(np.zeros((HEAVY // 16, 2), np.uint8)[:, 0]).heavy
    assert lend(np.zeros((HEAVY, 2), np.uint8)[:, 0]).heavy


@pytest.fixture
def device():
    with strict_devices("gpu-0") as (made,):
        yield made


def test_a_device_s_array_by_way_of_the_host(device: StrictDevice):
    array = device.to_device(np.arange(12.0).reshape(3, 4)).T
    lent = lend_to_write(array)
    assert lent.heavy and lent.shape == (4, 3)
    flat = lent.load()
    assert type(flat) is np.ndarray
    np.testing.assert_array_equal(flat, np.arange(12.0).reshape(3, 4).T.ravel())
    lent.written(-flat, None)
    np.testing.assert_array_equal(device.asnumpy(array), -np.arange(12.0).reshape(3, 4).T)
    result = lent.result(np.arange(6.0), (2, 3))
    assert backend.device_of(result) == device.device
    np.testing.assert_array_equal(device.asnumpy(result), np.arange(6.0).reshape(2, 3))


def test_another_thread_copies_with_the_caller_s_devices(device: StrictDevice):
    entered = []
    variable = contextvars.ContextVar("variable", default="unset")
    variable.set("the caller's")
    with device.device:
        lent = lend(device.zeros(3))
    lent._there(lambda: entered.append((variable.get(), backend.current_device())))
    thread = threading.Thread(
        target=lambda: lent._there(lambda: entered.append((variable.get(), backend.current_device())))
    )
    thread.start()
    thread.join()
    assert entered == [("the caller's", device.device)] * 2
