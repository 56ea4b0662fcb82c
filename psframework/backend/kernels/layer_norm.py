"""Layer norm and RMS norm over rows: statistics, result and gradient by one block a row."""

from __future__ import annotations

import numpy as np

from psframework.backend.arrays import Array
from psframework.backend.kernels.launch import Launcher, RowKernel, threads
from psframework.backend.kernels.source import compute_dtype

SOURCE = """
extern "C" __global__ void layer_norm(
    const T* x, const C* weight, const C* bias, T* y, C* means, C* scales,
    long long cols, C eps, int centred, int weighted, int biased
) {
    __shared__ C shared[32];
    long long start = blockIdx.x * cols;
    C mean = 0;
    if (centred) {
        for (long long j = threadIdx.x; j < cols; j += blockDim.x) mean += load(x[start + j]);
        mean = block_sum(mean, shared) / cols;
    }
    C squares = 0;
    for (long long j = threadIdx.x; j < cols; j += blockDim.x) {
        C centred_value = load(x[start + j]) - mean;
        squares += centred_value * centred_value;
    }
    C scale = 1 / sqrt(block_sum(squares, shared) / cols + eps);
    for (long long j = threadIdx.x; j < cols; j += blockDim.x) {
        C value = (load(x[start + j]) - mean) * scale;
        if (weighted) value *= weight[j];
        if (biased) value += bias[j];
        y[start + j] = store(value);
    }
    if (threadIdx.x == 0) {
        means[blockIdx.x] = mean;
        scales[blockIdx.x] = scale;
    }
}

extern "C" __global__ void layer_norm_gradient(
    const T* g, const T* x, const C* weight, const C* means, const C* scales, T* into,
    long long cols, int centred, int weighted
) {
    __shared__ C shared[32];
    long long start = blockIdx.x * cols;
    C mean = means[blockIdx.x];
    C scale = scales[blockIdx.x];
    C total = 0;
    C along = 0;
    for (long long j = threadIdx.x; j < cols; j += blockDim.x) {
        C value = load(g[start + j]) * (weighted ? weight[j] : 1);
        total += value;
        along += value * (load(x[start + j]) - mean) * scale;
    }
    total = block_sum(total, shared) / cols;
    along = block_sum(along, shared) / cols;
    if (!centred) total = 0;
    for (long long j = threadIdx.x; j < cols; j += blockDim.x) {
        C value = load(g[start + j]) * (weighted ? weight[j] : 1);
        into[start + j] = store(scale * (value - total - (load(x[start + j]) - mean) * scale * along));
    }
}

// Sums over rows: 256 threads take 32 columns and every 8th row of a share; shares are summed afterwards.
extern "C" __global__ void layer_norm_columns(
    const T* g, const T* x, const C* means, const C* scales, C* into_weight, C* into_bias,
    long long rows, long long cols
) {
    __shared__ C alongs[256];
    __shared__ C totals[256];
    long long col = blockIdx.x * 32 + (threadIdx.x & 31);
    C along = 0;
    C total = 0;
    if (col < cols) {
        for (long long row = blockIdx.y * 8 + (threadIdx.x >> 5); row < rows; row += gridDim.y * 8) {
            C value = load(g[row * cols + col]);
            total += value;
            along += value * (load(x[row * cols + col]) - means[row]) * scales[row];
        }
    }
    alongs[threadIdx.x] = along;
    totals[threadIdx.x] = total;
    __syncthreads();
    if (threadIdx.x < 32 && col < cols) {
        for (int i = 1; i < 8; i += 1) {
            along += alongs[threadIdx.x + 32 * i];
            total += totals[threadIdx.x + 32 * i];
        }
        into_weight[blockIdx.y * cols + col] = along;
        into_bias[blockIdx.y * cols + col] = total;
    }
}
"""
_SHARES = 64  # of the rows: enough blocks to fill a GPU also where columns are few


class LayerNormKernels(Launcher):
    """Over the last axis of (rows, columns) arrays; factors and summands in the compute dtype."""

    def layer_norm(
        self, x: Array, weight: Array | None, bias: Array | None, eps: float, centred: bool = True
    ) -> tuple[Array, Array, Array]:
        """The result, each row's mean and 1 / deviation.

        Args:
            x: (rows, cols), contiguous.
            weight: (cols,) in the compute dtype, or None.
            bias: (cols,) in the compute dtype, or None.
            eps: added to the variance.
            centred: False for RMS norm, which subtracts no mean.
        """
        wide = compute_dtype(x.dtype)
        y, means, scales = self.cp.empty(x.shape, x.dtype), *(self.cp.empty(len(x), wide) for _ in range(2))
        if x.size:
            flags = (np.int32(centred), np.int32(weight is not None), np.int32(bias is not None))
            factors = means if weight is None else weight, means if bias is None else bias
            numbers = (np.int64(x.shape[1]), wide.type(eps), *flags)
            arguments = (x, *factors, y, means, scales, *numbers)
            kernel = RowKernel("layer_norm", x.dtype, SOURCE)
            self.start(kernel, (len(x),), threads(x.shape[1]), arguments)
        return y, means, scales

    def layer_norm_gradient(
        self, g: Array, x: Array, weight: Array | None, saved: tuple[Array, Array], centred: bool = True
    ) -> Array:
        """The gradient of `x`; `saved` are means and scales."""
        into: Array = self.cp.empty(x.shape, x.dtype)
        if x.size:
            flags = (np.int32(centred), np.int32(weight is not None))
            arrays = (self.contiguous(g), x, saved[0] if weight is None else weight, *saved, into)
            kernel = RowKernel("layer_norm_gradient", x.dtype, SOURCE)
            self.start(kernel, (len(x),), threads(x.shape[1]), (*arrays, np.int64(x.shape[1]), *flags))
        return into

    def layer_norm_columns(self, g: Array, x: Array, saved: tuple[Array, Array]) -> tuple[Array, Array]:
        """The gradients of weight and bias, in the compute dtype."""
        rows, cols = x.shape
        shares = min(_SHARES, max(1, rows // 8))
        along, total = (self.cp.zeros((shares, cols), compute_dtype(x.dtype)) for _ in range(2))
        if x.size:
            arguments = (self.contiguous(g), x, *saved, along, total, np.int64(rows), np.int64(cols))
            kernel = RowKernel("layer_norm_columns", x.dtype, SOURCE)
            self.start(kernel, (-(-cols // 32), shares), 256, arguments)
        return along.sum(axis=0), total.sum(axis=0)
