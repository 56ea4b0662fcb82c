"""Copies, streams, pinned memory and DLPack on a real device."""

import threading

import numpy as np
import pytest

import psframework as psf
from psframework import backend
from psframework.errors import ArgumentError

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("shape", [(), (0, 3), (3, 4), (5, 1_000_003)])
@pytest.mark.parametrize("pinned", [False, True])
def test_there_and_back(shape, pinned, device):
    host = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    if pinned:
        source = backend.pinned_empty(shape, np.float32)
        source[...] = host
    else:
        source = host.T
    there = backend.to_device(source, device)
    assert backend.device_of(there) == device
    np.testing.assert_array_equal(backend.asnumpy(there), source)
    np.testing.assert_array_equal(
        backend.to_device(there[..., ::2], "cpu") if shape else host, source[..., ::2] if shape else host
    )


def test_a_stream_orders_copies_and_work(device):
    host = np.ones(8_000_000, np.float32)
    stream, other = backend.stream(device), backend.stream(device)
    with stream:
        there = backend.to_device(host, device, stream=stream)
        doubled = there * 2
    other.wait(stream.record())
    np.testing.assert_array_equal(backend.asnumpy(doubled, stream=other), host * 2)
    done = threading.Event()
    stream.when_done(done.set)
    assert done.wait(10)
    stream.synchronize()
    assert stream.done


def test_gradients_come_home(device):
    x = psf.tensor(np.arange(3.0), True)
    (x.to(device, np.float32) ** 2).sum().backward()
    assert type(x.grad) is np.ndarray and x.grad.tolist() == [0, 2, 4]


async def test_the_compute_thread_has_the_device(device):
    with device:
        made = await psf.compute(lambda: psf.tensor([1.0]))
    assert made.device == device


def test_dlpack(device):
    cupy = backend.cupy()
    theirs = cupy.arange(4.0)
    ours = psf.from_dlpack(theirs)
    ours.data[0] = 9
    assert float(theirs[0]) == 9 and ours.device == device
    assert cupy.from_dlpack(ours).data.ptr == theirs.data.ptr


def test_names(device):
    assert psf.device("cuda") == device and psf.tensor([1.0]).cuda().device == device
    with pytest.raises(ArgumentError, match="this machine has only cuda:0"):
        psf.device("cuda:99")


def test_from_one_gpu_to_another(device):
    count = backend.cupy().cuda.runtime.getDeviceCount()
    for index in range(1, count):
        there = backend.to_device(backend.to_device(np.arange(5.0), device), f"cuda:{index}")
        assert backend.device_of(there).index == index and backend.asnumpy(there).tolist() == [0, 1, 2, 3, 4]
