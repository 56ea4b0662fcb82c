from types import SimpleNamespace

import numpy as np
import pytest

from psframework.backend.kernels.launch import Launcher, RowKernel, threads


def test_threads_are_whole_warps():
    assert [threads(n) for n in (0, 1, 32, 33, 1000, 5000)] == [32, 32, 32, 64, 1024, 1024]


def test_each_kernel_is_compiled_once_for_each_dtype():
    made, started = [], []
    cp = SimpleNamespace(
        RawKernel=lambda code, name: (
            made.append((name, "double C" in code)) or (lambda *a: started.append(a))
        ),
        ElementwiseKernel=lambda *parts: made.append(parts) or object(),
    )
    launcher, array = Launcher(cp), SimpleNamespace(device="a")
    for _ in range(2):
        for dtype in (np.float32, np.float64):
            launcher.start(RowKernel("k", np.dtype(dtype), "source"), (3, 2), 64, (array, np.int64(1)))
        launcher.elementwise("T x", "T y", "y = x;", "copy")
        launcher.elementwise("T x", "T y", "y = x * 2;", "copy")
    assert made[:2] == [("k", False), ("k", True)] and len(made) == 4
    assert started == [((3, 2), (64,), (array, 1))] * 4


def test_arrays_of_two_devices_are_refused():
    """A kernel would follow their addresses all the same."""
    arrays = [SimpleNamespace(device=name) for name in "aab"]
    with pytest.raises(TypeError, match="k: arrays on different devices"):
        Launcher(None).start(RowKernel("k", np.dtype(np.float32), ""), (1,), 32, tuple(arrays))


def test_contiguous():
    launcher = Launcher(np)
    array = np.ones((2, 3))
    assert launcher.contiguous(array) is array and launcher.contiguous(array.T).flags.c_contiguous
