"""Arrays of other libraries; tests/autograd/test_dlpack.py has what is refused, and torch's."""

import ctypes

import numpy as np
import pytest

from psframework import backend
from psframework.backend import dlpack
from psframework.errors import ArgumentError


def test_memory_is_shared_unless_it_is_read_only():
    array = np.arange(6.0).reshape(2, 3)[:, ::-1]
    assert np.shares_memory(backend.from_dlpack(array), array)
    assert not np.shares_memory(backend.from_dlpack(array, copy=True), array)
    array.flags.writeable = False
    assert backend.from_dlpack(array).flags.writeable
    with pytest.raises(ArgumentError, match="read-only"):
        backend.from_dlpack(array, copy=False)


class Lender:
    """Lends bfloat16 as torch does, which NumPy can't read, or without a version as JAX does."""

    def __init__(self, shape, strides, code=4, version=True, flags=0):
        self.memory = np.arange(12, dtype=np.float32).astype(backend.bfloat16)
        int64s = ctypes.c_int64 * max(len(shape), 1)
        self.lengths, self.steps = int64s(*shape), strides and int64s(*strides)
        pointer = ctypes.POINTER(ctypes.c_int64)
        self.tensor = dlpack._Tensor(
            self.memory.ctypes.data, 1, 0, len(shape), code, 16, 1, ctypes.cast(self.lengths, pointer),
            ctypes.cast(self.steps, pointer) if strides else None, 2,
        )  # fmt: skip

        self.versioned = dlpack._Versioned((1, 0), None, None, flags, self.tensor) if version else None

    def __dlpack_device__(self):
        return 1, 0

    def __dlpack__(self, **options):
        make = ctypes.pythonapi.PyCapsule_New
        make.restype, make.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
        if self.versioned is None:
            if options:
                raise TypeError("an old library")
            return make(ctypes.addressof(self.tensor), b"dltensor", None)
        return make(ctypes.addressof(self.versioned), b"dltensor_versioned", None)


@pytest.mark.parametrize(
    ("shape", "strides", "expected"),
    [
        ((2, 3), None, [[1, 2, 3], [4, 5, 6]]),
        ((3, 2), (1, 3), [[1, 4], [2, 5], [3, 6]]),
        ((), None, 1),
        ((0, 2), None, []),
    ],
)
def test_bfloat16(shape, strides, expected):
    lender = Lender(shape, strides)
    array = backend.from_dlpack(lender)
    assert array.dtype == backend.bfloat16 and array.tolist() == expected
    if array.size:
        array[...] = 50
        assert np.count_nonzero(lender.memory == 50) == array.size


@pytest.mark.parametrize("options", [{"version": False}, {"flags": 1}])
def test_bfloat16_that_must_not_be_written_to_is_copied(options):
    lender = Lender((2, 3), None, **options)
    array = backend.from_dlpack(lender)
    array[...] = 50
    assert array.flags.writeable and not np.any(lender.memory == 50)
    with pytest.raises(ArgumentError, match="read-only"):
        backend.from_dlpack(lender, copy=False)


def test_our_own_bfloat16():
    array = np.ones(3, backend.bfloat16)
    assert backend.from_dlpack(array) is array
    assert not np.shares_memory(backend.from_dlpack(array, copy=True), array)


def test_what_cannot_be_read():
    with pytest.raises(ArgumentError, match="Lender can't be taken"):
        backend.from_dlpack(Lender((2,), (-1,)))
    with pytest.raises(ArgumentError, match="Lender can't be taken"):
        backend.from_dlpack(Lender((2,), None, code=9))
