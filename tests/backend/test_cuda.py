"""The CUDA platform's own logic, on a stand-in for CuPy; tests/gpu runs it on a real device."""

import numpy as np
import pytest
from fake_cupy import fake_cupy

from psframework import backend
from psframework.backend import cuda as module
from psframework.backend import platforms
from psframework.backend.cuda import CudaPlatform, CudaStream
from psframework.errors import ArgumentError


@pytest.fixture
def cp(monkeypatch):
    """A platform that sees two GPUs, in place of the one that sees none."""
    monkeypatch.setattr(platforms, "_by_kind", dict(platforms._by_kind))
    monkeypatch.setattr(platforms, "_by_class", dict(platforms._by_class))
    with fake_cupy() as cupy:
        backend.register_platform(CudaPlatform(), cupy.ndarray)
        backend.register_namespace(cupy.ndarray, cupy)
        yield cupy
        backend.forget_namespace(cupy.ndarray)
    assert cupy.current == [0] and not cupy.streams


def test_names(cp):
    assert str(backend.device("cuda")) == "cuda:0" and str(backend.device("cuda:1")) == "cuda:1"
    with backend.device("cuda:1"):
        assert backend.device("cuda") == backend.device("cuda:1") == backend.current_device()
    with pytest.raises(ArgumentError, match="this machine has only cuda:0, cuda:1"):
        backend.device("cuda:2")


@pytest.mark.parametrize("shape", [(), (0, 3), (3, 4), (3, 700_000)])
def test_there_and_back(cp, shape):
    host = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    there = backend.to_device(host, "cuda:1")
    assert str(backend.device_of(there)) == "cuda:1" and there.shape == shape
    assert backend.to_device(there, "cuda:1") is there
    other = backend.to_device(there, "cuda:0")
    assert str(backend.device_of(other)) == "cuda:0" and ("device to device", host.nbytes) in cp.log
    for back in (backend.asnumpy(there), backend.to_device(other, "cpu")):
        assert type(back) is np.ndarray and back.shape == shape
        np.testing.assert_array_equal(back, host)


def test_large_copies_go_in_pieces_through_pinned_buffers(cp, monkeypatch):
    monkeypatch.setattr(module, "STAGED", 100)
    platform = platforms.platform_named("cuda")
    platform._staging.size = 64
    host = np.arange(50, dtype=np.float32)
    there = backend.to_device(host[::-1], "cuda:0")
    assert cp.log == [("host to device", 64)] * 3 + [("host to device", 8)]
    cp.log.clear()
    np.testing.assert_array_equal(backend.asnumpy(there), host[::-1])
    assert cp.log.count(("device to host", 64)) == 3 and cp.log.count(("event", "synchronize")) == 4
    # The processor empties a buffer only after the device has begun to fill the next.
    assert cp.log[:3] == [("device to host", 64), ("device to host", 64), ("event", "synchronize")]
    assert len(platform._staging._free) <= 4
    there = backend.to_device(host.astype(">f4"), "cuda:0")  # the GPU would take its bytes as they are
    assert there.dtype == np.float32 and there.dtype.isnative
    np.testing.assert_array_equal(backend.asnumpy(there), host)


def test_pinned_memory_is_copied_directly(cp):
    pinned = backend.pinned_empty((3, 2), np.float32)
    pinned[...] = 1
    assert pinned.shape == (3, 2) and pinned.flags.writeable
    backend.to_device(pinned, "cuda:0")
    assert cp.log == [("host to device", 24), ("stream", "synchronize")]
    cp.log.clear()
    backend.to_device(pinned[1:], "cuda:0", stream=backend.stream("cuda:0"))
    assert cp.log == [("host to device", 16)]  # who gives a stream waits for it
    backend.to_device(np.ones(3), "cuda:0")
    assert cp.log[-1] == ("array", 24)


def test_streams(cp):
    stream = backend.stream("cuda:1")
    assert isinstance(stream, CudaStream) and stream.raw.device == 1 and stream.done
    with stream:
        assert cp.streams[-1] is stream.raw and cp.current[-1] == 1
        assert str(backend.current_device()) == "cuda:1"
    event = stream.record()
    backend.stream("cuda:0").wait(event)
    stream.wait(backend.stream("cpu").record())
    stream.synchronize()
    called = []
    stream.when_done(lambda: called.append(1))
    assert called == [1] and cp.log == [("stream", "wait"), ("stream", "synchronize")]


def test_what_is_missing():
    platform = CudaPlatform()
    with fake_cupy(devices=0):
        assert platform.count() == 0
    assert "CuPy" in platform.missing()
    with pytest.raises(ArgumentError, match="no CUDA device: CuPy is"):
        platform.put(np.ones(2), 0, None)  # for a device that was not asked for by name


def test_a_cupy_that_cannot_be_imported(tmp_path, monkeypatch):
    (tmp_path / "cupy.py").write_text("raise ImportError('libnvrtc.so.12: no such file')")
    monkeypatch.syspath_prepend(tmp_path)
    platform = CudaPlatform()
    assert platform.count() == 0
    assert platform.missing() == "CuPy is installed, but can't be imported: libnvrtc.so.12: no such file"


def test_kernels_only_where_they_would_run(cp):
    there = backend.to_device(np.ones(2), "cuda:1")
    assert backend.fused(there) is None
    with backend.device("cuda:1"):
        assert backend.fused(there) is backend.fused(there) is not None
