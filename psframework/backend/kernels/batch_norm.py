"""Batch norm: statistics and gradient by one block a channel."""

from __future__ import annotations

import numpy as np

from psframework.backend.arrays import Array
from psframework.backend.kernels.launch import Launcher, RowKernel, threads
from psframework.backend.kernels.source import compute_dtype

SOURCE = """
// Element i of a channel of (images, channels, area). In 32 bits: a division of 64 takes many times as long.
__device__ long long place(unsigned int i, unsigned int channel, unsigned int channels, unsigned int area) {
    unsigned int image = i / area;
    return ((long long)image * channels + channel) * area + (i - image * area);
}

extern "C" __global__ void batch_statistics(
    const T* x, C* means, C* variances, unsigned int images, unsigned int channels, unsigned int area
) {
    __shared__ C shared[32];
    unsigned int count = images * area;
    C mean = 0;
    for (unsigned int i = threadIdx.x; i < count; i += blockDim.x)
        mean += load(x[place(i, blockIdx.x, channels, area)]);
    mean = block_sum(mean, shared) / count;
    C squares = 0;
    for (unsigned int i = threadIdx.x; i < count; i += blockDim.x) {
        C value = load(x[place(i, blockIdx.x, channels, area)]) - mean;
        squares += value * value;
    }
    squares = block_sum(squares, shared) / count;
    if (threadIdx.x == 0) {
        means[blockIdx.x] = mean;
        variances[blockIdx.x] = squares;
    }
}

extern "C" __global__ void batch_norm(
    const T* x, const C* means, const C* factors, const C* summands, T* y,
    long long size, unsigned int channels, unsigned int area
) {
    long long step = (long long)gridDim.x * blockDim.x;
    for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < size; i += step) {
        unsigned int channel = (unsigned int)(i / area) % channels;
        y[i] = store((load(x[i]) - means[channel]) * factors[channel] + summands[channel]);
    }
}

extern "C" __global__ void batch_norm_gradient(
    const T* g, const T* x, const C* means, const C* scales, const C* factors, T* into, C* alongs, C* totals,
    unsigned int images, unsigned int channels, unsigned int area, int training
) {
    __shared__ C shared[32];
    unsigned int count = images * area;
    C mean = means[blockIdx.x];
    C scale = scales[blockIdx.x];
    C factor = factors[blockIdx.x];
    C total = 0;
    C along = 0;
    for (unsigned int i = threadIdx.x; i < count; i += blockDim.x) {
        long long at = place(i, blockIdx.x, channels, area);
        C value = load(g[at]);
        total += value;
        along += value * (load(x[at]) - mean) * scale;
    }
    total = block_sum(total, shared);
    along = block_sum(along, shared);
    if (threadIdx.x == 0) {
        alongs[blockIdx.x] = along;
        totals[blockIdx.x] = total;
    }
    C share = training ? (C)1 / count : 0;
    for (unsigned int i = threadIdx.x; i < count; i += blockDim.x) {
        long long at = place(i, blockIdx.x, channels, area);
        C normal = (load(x[at]) - mean) * scale;
        into[at] = store(factor * (load(g[at]) - (total + normal * along) * share));
    }
}
"""
LIMIT = 1 << 31
"""Elements that these kernels count in 32 bits."""


class BatchNormKernels(Launcher):
    """Over axes 0 and 2 of contiguous (images, channels, area) arrays, smaller than `LIMIT`."""

    def batch_statistics(self, x: Array) -> tuple[Array, Array]:
        """Mean and variance (divided by the count) of each channel, in the compute dtype."""
        images, channels, area = x.shape
        means, variances = (self.cp.zeros(channels, compute_dtype(x.dtype)) for _ in range(2))
        if x.size:
            numbers = (np.uint32(images), np.uint32(channels), np.uint32(area))
            kernel = RowKernel("batch_statistics", x.dtype, SOURCE)
            self.start(kernel, (channels,), threads(images * area), (x, means, variances, *numbers))
        return means, variances

    def batch_norm(self, x: Array, means: Array, factors: Array, summands: Array) -> Array:
        """(x - mean) * factor + summand, each of the three one number a channel in the compute dtype."""
        y: Array = self.cp.empty(x.shape, x.dtype)
        if x.size:
            numbers = (np.int64(x.size), np.uint32(x.shape[1]), np.uint32(x.shape[2]))
            block = threads(min(x.size, 256))
            kernel, grid = RowKernel("batch_norm", x.dtype, SOURCE), (min(-(-x.size // block), 4096),)
            self.start(kernel, grid, block, (x, means, factors, summands, y, *numbers))
        return y

    def batch_norm_gradient(
        self, g: Array, x: Array, statistics: tuple[Array, Array, Array], training: bool
    ) -> tuple[Array, Array, Array]:
        """The gradients of `x`, of the weight and of the bias.

        Args:
            g: gradient of the result, of the shape of `x`.
            x: as in the forward pass.
            statistics: mean, 1 / deviation, and that times the weight, of each channel.
            training: whether mean and deviation depend on `x`.
        """
        images, channels, area = x.shape
        into: Array = self.cp.empty(x.shape, x.dtype)
        alongs, totals = (self.cp.zeros(channels, compute_dtype(x.dtype)) for _ in range(2))
        if x.size:
            numbers = (np.uint32(images), np.uint32(channels), np.uint32(area), np.int32(training))
            kernel = RowKernel("batch_norm_gradient", x.dtype, SOURCE)
            arrays = (self.contiguous(g), x, *statistics, into, alongs, totals)
            self.start(kernel, (channels,), threads(images * area), (*arrays, *numbers))
        return into, alongs, totals
