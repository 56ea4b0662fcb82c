"""CUDA IPC's own logic, on a stand-in for CuPy; tests/gpu has two processes and a real device."""

import numpy as np
import pytest
from fake_cupy import HANDLE, fake_cupy

from psframework import backend
from psframework.backend import ipc as module
from psframework.backend.ipc import GRAIN, CudaIpc
from psframework.errors import ArgumentError, WireError


@pytest.fixture
def cp():
    with fake_cupy() as cupy:
        yield cupy
    assert cupy.current == [0] and not cupy.streams


def test_what_is_written_is_read_by_whoever_opened_it(cp):
    ipc = CudaIpc(cp, lambda pointer: (pointer, GRAIN))
    mine = ipc.allocate(1, 100)
    assert (mine.nbytes, mine.handle) == (GRAIN, HANDLE)
    theirs = ipc.open(ipc.address(1), mine.handle, mine.nbytes)
    assert cp.opened == 1
    mine.write(8, cp.ndarray(np.arange(6.0), 1))
    mine.write(0, np.arange(1.0))
    assert [step for step, _ in cp.log if step in ("device to device", "host to device")] == [
        "device to device",
        "host to device",
    ]
    assert cp.log[-1] == ("stream", "synchronize"), "the other process knows nothing of our streams"
    found = theirs.read(8, 48)
    assert cp.log[-1] == ("stream", "synchronize") and found.device.id == 1
    np.testing.assert_array_equal(found.host.view(float), np.arange(6.0))
    mine.write(8, np.full(6, 9.0))
    np.testing.assert_array_equal(found.host.view(float), np.arange(6.0), "it is a copy")
    theirs.close()
    theirs.close()
    mine.close()
    assert cp.opened == 0


@pytest.mark.parametrize(("offset", "nbytes"), [(-1, 1), (0, GRAIN + 1), (GRAIN, 1), (0, -1), (1 << 62, 8)])
def test_nothing_outside_of_the_memory_is_read(cp, offset, nbytes):
    ipc = CudaIpc(cp, lambda pointer: (pointer, GRAIN))
    theirs = ipc.open(ipc.address(0), ipc.allocate(0, GRAIN).handle, GRAIN)
    with pytest.raises(WireError, match="device memory of"):
        theirs.read(offset, nbytes)
    with pytest.raises(WireError, match="device memory of"):
        theirs.write(GRAIN - 4, np.zeros(1))


def test_less_memory_than_was_said_is_refused_and_closed(cp):
    ipc = CudaIpc(cp, lambda pointer: (pointer - 512, GRAIN))
    handle = ipc.allocate(0, GRAIN).handle
    with pytest.raises(WireError, match="said to have"):
        ipc.open(ipc.address(0), handle, GRAIN)
    kept = ipc.open(ipc.address(0), handle, GRAIN - 512)
    assert cp.opened == 1
    kept.close()


def test_the_driver_says_how_long_memory_is(monkeypatch):
    asked = []

    class Driver:
        def __init__(self, name):
            assert name == "libcuda.so.1"

        @staticmethod
        def cuMemGetAddressRange_v2(base, size, pointer):
            asked.append(pointer.value)
            base._obj.value, size._obj.value = 4096, 100
            return 0 if pointer.value == 4100 else 1

    monkeypatch.setattr(module.ctypes, "CDLL", Driver)
    assert module._extent(4100) == (4096, 100) and asked == [4100]
    with pytest.raises(WireError, match="error 1"):
        module._extent(5)


@pytest.mark.parametrize("handle", [b"", b"x" * 63, b"x" * 65])
def test_what_is_no_handle(cp, handle):
    with pytest.raises(WireError, match="handle of"):
        CudaIpc(cp).open("0000:00:00.0", handle, 1)


def test_devices_that_are_not_here():
    for kind in ("cpu", "tpu", "cuda"):
        with pytest.raises(ArgumentError, match="no device"):
            backend.open_shared(kind, "0", HANDLE, 1)
