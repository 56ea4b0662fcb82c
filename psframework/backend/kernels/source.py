"""What every CUDA kernel here begins with: types, conversions, reductions over a block."""

from __future__ import annotations

import numpy as np

from psframework.backend.dtypes import NARROW, DType, bfloat16

# No header is included: CuPy's wheels do not bring CUDA's, and NVRTC knows all of this by itself.
_CONVERSIONS = {
    "float16": """
__device__ __forceinline__ C load(T x) { C y; asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x)); return y; }
__device__ __forceinline__ T store(C x) { T y; asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y) : "f"(x)); return y; }
""",
    "bfloat16": """
__device__ __forceinline__ C load(T x) { return __uint_as_float(((unsigned int)x) << 16); }
__device__ __forceinline__ T store(C x) {
    unsigned int bits = __float_as_uint(x);
    if (x != x) return 0x7fc0;
    return (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;  // to nearest, ties to even
}
""",
    "": """
__device__ __forceinline__ C load(T x) { return x; }
__device__ __forceinline__ T store(C x) { return x; }
""",
}

REDUCTIONS = """
// The sum over all threads of a block, in each of them, always in the same order.
// blockDim.x is a multiple of 32; `shared` has 32 places.
__device__ C block_sum(C value, C* shared) {
    for (int offset = 16; offset > 0; offset >>= 1) value += __shfl_xor_sync(0xffffffffu, value, offset);
    int lane = threadIdx.x & 31;
    __syncthreads();  // an earlier reduction may still be read
    if (lane == 0) shared[threadIdx.x >> 5] = value;
    __syncthreads();
    value = lane < (blockDim.x >> 5) ? shared[lane] : 0;
    for (int offset = 16; offset > 0; offset >>= 1) value += __shfl_xor_sync(0xffffffffu, value, offset);
    return value;
}

__device__ C larger(C a, C b) { return a > b ? a : b; }

__device__ C block_max(C value, C* shared) {
    for (int offset = 16; offset > 0; offset >>= 1)
        value = larger(value, __shfl_xor_sync(0xffffffffu, value, offset));
    int lane = threadIdx.x & 31;
    __syncthreads();
    if (lane == 0) shared[threadIdx.x >> 5] = value;
    __syncthreads();
    value = lane < (blockDim.x >> 5) ? shared[lane] : shared[0];
    for (int offset = 16; offset > 0; offset >>= 1)
        value = larger(value, __shfl_xor_sync(0xffffffffu, value, offset));
    return value;
}
"""


def compute_dtype(dtype: DType) -> DType:
    """What a kernel computes in: float32 for 16 bits, else the dtype itself."""
    return np.dtype(np.float32) if dtype in NARROW else dtype


def compute_name(dtype: DType) -> str:
    """C's name of the type that a kernel computes in."""
    return "double" if dtype == np.float64 else "float"


def prelude(dtype: DType) -> str:
    """Types and functions for a kernel over arrays of `dtype`: T is stored, C is computed with."""
    storage = "unsigned short" if dtype in NARROW else compute_name(dtype)
    name = "bfloat16" if dtype == bfloat16 else dtype.name
    conversions = _CONVERSIONS.get(name, _CONVERSIONS[""])
    return f"typedef {storage} T;\ntypedef {compute_name(dtype)} C;\n{conversions}{REDUCTIONS}"
