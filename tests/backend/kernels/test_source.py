import re

import ml_dtypes
import numpy as np
import pytest

from psframework.backend.kernels.source import compute_dtype, compute_name, prelude
from psframework.testing.strict_device import strict_devices


@pytest.mark.parametrize(
    ("dtype", "storage", "compute"),
    [
        (np.float16, "unsigned short", "float"),
        (ml_dtypes.bfloat16, "unsigned short", "float"),
        (np.float32, "float", "float"),
        (np.float64, "double", "double"),
    ],
)
def test_what_is_stored_and_what_is_computed_in(dtype, storage, compute):
    dtype = np.dtype(dtype)
    text = prelude(dtype)
    assert f"typedef {storage} T;" in text and f"typedef {compute} C;" in text
    assert (
        compute_name(dtype) == compute and compute_dtype(dtype).itemsize == {"float": 4, "double": 8}[compute]
    )
    assert "#include" not in text  # CuPy's wheels bring no CUDA headers
    assert ("cvt.f32.f16" in text) == (dtype == np.float16)
    assert ("0x7fff" in text) == (dtype == ml_dtypes.bfloat16)


def test_bfloat16_is_rounded_as_ml_dtypes_does():
    """The C expression, in Python, on values around ties, infinities and nan."""
    (expression,) = re.findall(r"return (\(bits .*?);", prelude(np.dtype(ml_dtypes.bfloat16)))
    bits = np.array(
        [0, 0x3F808000, 0x3F818000, 0x3F808001, 0x3F807FFF, 0x7F7FFFFF, 0x7F800000, 0xFF800000], np.uint32
    )
    expected = bits.view(np.float32).astype(ml_dtypes.bfloat16).view(np.uint16)
    assert [eval(expression, {"bits": int(b)}) for b in bits] == expected.tolist()


KERNEL = """
extern "C" __global__ void reduce(const T* x, C* sums, C* tops, long long size) {
    __shared__ C shared[32];
    C sum = 0;
    C top = load(x[0]);
    for (long long j = threadIdx.x; j < size; j += blockDim.x) {
        sum += load(x[j]);
        top = larger(top, load(x[j]));
    }
    sum = block_sum(sum, shared);
    top = block_max(top, shared);
    sums[threadIdx.x] = sum;
    tops[threadIdx.x] = top;
}
"""


@pytest.mark.parametrize("threads", [32, 64, 160])
def test_every_thread_gets_the_reduction(threads):
    from psframework.testing.kernel_emulator import RawKernel

    with strict_devices("source-0") as (device,):
        x = device.to_device(np.arange(-7.0, 70.0))
        sums, tops = device.zeros(threads), device.zeros(threads)
        kernel = RawKernel(device, prelude(np.dtype(np.float64)) + KERNEL, "reduce")
        kernel((1,), (threads,), (x, sums, tops, np.int64(77)))
        assert set(sums.tolist()) == {sum(range(-7, 70))} and set(tops.tolist()) == {69}
