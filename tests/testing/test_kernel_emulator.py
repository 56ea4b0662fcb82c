import math

import numpy as np
import pytest

from psframework.backend.kernels.source import prelude
from psframework.testing.kernel_emulator import BUILT_IN, ElementwiseKernel, RawKernel
from psframework.testing.strict_device import strict_devices

HEAD = prelude(np.dtype(np.float32))


@pytest.fixture
def device():
    with strict_devices("emulator-0") as (device,):
        yield device


def start(device, body, x, threads=32, grid=(1,)):
    code = f'{HEAD} extern "C" __global__ void k(T* x, long long size) {{ {body} }}'
    RawKernel(device, code, "k")(grid, (threads,), (x, np.int64(x.size)))
    return x


def test_blocks_and_threads(device):
    x = device.zeros(256, "float32")
    start(
        device,
        "x[(blockIdx.y * gridDim.x + blockIdx.x) * blockDim.x + threadIdx.x] = blockIdx.y;",
        x,
        64,
        (2, 2),
    )
    assert x.tolist() == [0] * 128 + [1] * 128


def test_shared_memory_is_one_for_a_block_and_unset_at_first(device):
    body = "__shared__ C s[32]; s[threadIdx.x] = threadIdx.x; __syncthreads();"
    body += "x[threadIdx.x] = s[31 - threadIdx.x];"
    assert start(device, body, device.zeros(32, "float32")).tolist() == list(range(31, -1, -1))
    early = "x[threadIdx.x] = s[threadIdx.x];"
    with pytest.raises(RuntimeError, match=r"threads \[15, 16\] race for s\[16\]"):
        start(device, body.replace("__syncthreads();", ""), device.zeros(32, "float32"))
    assert all(
        math.isnan(v)
        for v in start(device, "__shared__ C s[32];" + early, device.zeros(32, "float32")).tolist()
    )


def test_mistakes_of_a_kernel_show(device):
    x = device.zeros(32, "float32")
    with pytest.raises(RuntimeError, match="at different places"):
        start(device, "if (threadIdx.x < 3) __syncthreads();", x)
    with pytest.raises(RuntimeError, match="at different places"):
        start(device, "if (threadIdx.x < 3) __syncthreads(); else x[0] = block_sum(1, x);", x)
    for place in ("threadIdx.x + 1", "threadIdx.x - 1"):
        with pytest.raises(IndexError, match="place"):
            start(device, f"x[{place}] = 1;", x)
    with pytest.raises(ValueError, match="not contiguous"):
        start(device, "x[0] = 1;", device.zeros((4, 2), "float32").T)
    with pytest.raises(TypeError, match="NumPy array"):
        start(device, "x[0] = 1;", np.zeros(32, np.float32))


def test_elements(device):
    kernel = ElementwiseKernel(device, "T x, T k", "T y", "T t = x * k; y = t > 1 ? t : 1;", "limit")
    x = device.to_device(np.array([[0.1], [2.0]], np.float32))
    y = kernel(x, 3)
    assert y.tolist() == [[1], [6]] and y.dtype == np.float32
    update = ElementwiseKernel(device, "T g", "T p, T m", "m = m + g; p = p - m;", "update")
    p, m = device.ones(2), device.ones(2)
    assert update(device.ones(2), p, m) is p and (p.tolist(), m.tolist()) == ([-1, -1], [2, 2])


def test_functions_answer_as_in_c():
    assert BUILT_IN["exp"](1e4) == math.inf and BUILT_IN["log"](0.0) == -math.inf
    assert math.isnan(BUILT_IN["sqrt"](-1.0)) and math.isnan(BUILT_IN["log"](-1.0))
