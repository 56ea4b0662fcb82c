from types import SimpleNamespace

import numpy as np

from psframework.backend.kernels.launch import Launcher, threads


def test_threads_are_whole_warps():
    assert [threads(n) for n in (0, 1, 32, 33, 1000, 5000)] == [32, 32, 32, 64, 1024, 1024]


def test_each_kernel_is_compiled_once_for_each_dtype():
    made = []
    cp = SimpleNamespace(
        RawKernel=lambda code, name: made.append((name, "double C" in code)) or object(),
        ElementwiseKernel=lambda *parts: made.append(parts) or object(),
    )
    launcher = Launcher(cp)
    for _ in range(2):
        for dtype in (np.float32, np.float64):
            launcher.raw("source", "k", np.dtype(dtype))
        launcher.elementwise("T x", "T y", "y = x;", "copy")
        launcher.elementwise("T x", "T y", "y = x * 2;", "copy")
    assert made == [
        ("k", False),
        ("k", True),
        ("T x", "T y", "y = x;", "copy"),
        ("T x", "T y", "y = x * 2;", "copy"),
    ]


def test_contiguous():
    launcher = Launcher(np)
    array = np.ones((2, 3))
    assert launcher.contiguous(array) is array and launcher.contiguous(array.T).flags.c_contiguous
