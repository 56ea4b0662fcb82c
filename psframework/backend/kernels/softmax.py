"""Softmax, its logarithm and cross-entropy: a block reads each row twice, and no temporary is written."""

from __future__ import annotations

from typing import Any

import numpy as np

from psframework.backend.arrays import Array
from psframework.backend.kernels.launch import Launcher, RowKernel, threads
from psframework.backend.kernels.source import compute_dtype

SOURCE = """
__device__ C row_max(const T* x, long long start, long long cols, C* shared) {
    C top = load(x[start]);
    for (long long j = threadIdx.x; j < cols; j += blockDim.x) top = larger(top, load(x[start + j]));
    return block_max(top, shared);
}

__device__ C row_sum(const T* x, long long start, long long cols, C top, C* shared) {
    C sum = 0;
    for (long long j = threadIdx.x; j < cols; j += blockDim.x) sum += exp(load(x[start + j]) - top);
    return block_sum(sum, shared);
}

extern "C" __global__ void softmax(const T* x, T* y, long long cols) {
    __shared__ C shared[32];
    long long start = blockIdx.x * cols;
    C top = row_max(x, start, cols, shared);
    C sum = row_sum(x, start, cols, top, shared);
    for (long long j = threadIdx.x; j < cols; j += blockDim.x)
        y[start + j] = store(exp(load(x[start + j]) - top) / sum);
}

extern "C" __global__ void log_softmax(const T* x, T* y, long long cols) {
    __shared__ C shared[32];
    long long start = blockIdx.x * cols;
    C top = row_max(x, start, cols, shared);
    C log_sum = log(row_sum(x, start, cols, top, shared));
    for (long long j = threadIdx.x; j < cols; j += blockDim.x)
        y[start + j] = store(load(x[start + j]) - top - log_sum);
}

extern "C" __global__ void softmax_gradient(const T* g, const T* y, T* into, long long cols) {
    __shared__ C shared[32];
    long long start = blockIdx.x * cols;
    C sum = 0;
    for (long long j = threadIdx.x; j < cols; j += blockDim.x) sum += load(g[start + j]) * load(y[start + j]);
    sum = block_sum(sum, shared);
    for (long long j = threadIdx.x; j < cols; j += blockDim.x)
        into[start + j] = store(load(y[start + j]) * (load(g[start + j]) - sum));
}

extern "C" __global__ void log_softmax_gradient(const T* g, const T* y, T* into, long long cols) {
    __shared__ C shared[32];
    long long start = blockIdx.x * cols;
    C sum = 0;
    for (long long j = threadIdx.x; j < cols; j += blockDim.x) sum += load(g[start + j]);
    sum = block_sum(sum, shared);
    for (long long j = threadIdx.x; j < cols; j += blockDim.x)
        into[start + j] = store(load(g[start + j]) - exp(load(y[start + j])) * sum);
}

// A label that is no class makes the loss nan: looking at it from the host would wait for the device.
extern "C" __global__ void cross_entropy(
    const T* x, const long long* labels, C* losses, C* tops, C* sums, long long cols, long long ignored
) {
    __shared__ C shared[32];
    long long start = blockIdx.x * cols;
    C top = row_max(x, start, cols, shared);
    C sum = row_sum(x, start, cols, top, shared);
    if (threadIdx.x == 0) {
        long long label = labels[blockIdx.x];
        C loss = 0;
        if (label != ignored) {
            if (label >= 0 && label < cols) loss = log(sum) - (load(x[start + label]) - top);
            else loss = sqrt((C)-1);
        }
        losses[blockIdx.x] = loss;
        tops[blockIdx.x] = top;
        sums[blockIdx.x] = sum;
    }
}

// scales[row * step] is the gradient of the row's loss: step is 0 where all rows share it.
extern "C" __global__ void cross_entropy_gradient(
    const T* x, const long long* labels, const C* tops, const C* sums, const C* scales, T* into,
    long long cols, long long step, long long ignored
) {
    long long start = blockIdx.x * cols;
    long long label = labels[blockIdx.x];
    C top = tops[blockIdx.x];
    C sum = sums[blockIdx.x];
    C scale = label == ignored ? 0 : scales[blockIdx.x * step];
    for (long long j = threadIdx.x; j < cols; j += blockDim.x)
        into[start + j] = store((exp(load(x[start + j]) - top) / sum - (j == label ? 1 : 0)) * scale);
}
"""


class SoftmaxKernels(Launcher):
    """Along the last axis of arrays of any shape."""

    def _rows(self, name: str, *arrays: Array) -> Array:
        """A kernel that takes arrays of one shape and writes another."""
        sources = [self.contiguous(array) for array in arrays]
        like = sources[-1]
        out: Array = self.cp.empty(like.shape, like.dtype)
        cols = like.shape[-1] if like.ndim else 1
        if out.size:
            kernel = RowKernel(name, like.dtype, SOURCE)
            self.start(kernel, (out.size // cols,), threads(cols), (*sources, out, np.int64(cols)))
        return out

    def softmax(self, x: Array) -> Array:
        """exp(x) / sum(exp(x)) along the last axis."""
        return self._rows("softmax", x)

    def log_softmax(self, x: Array) -> Array:
        """x - log(sum(exp(x))) along the last axis."""
        return self._rows("log_softmax", x)

    def softmax_gradient(self, g: Array, y: Array) -> Array:
        """The gradient of what softmax made `y` of, from that of `y`."""
        return self._rows("softmax_gradient", g, y)

    def log_softmax_gradient(self, g: Array, y: Array) -> Array:
        """The gradient of what log_softmax made `y` of, from that of `y`."""
        return self._rows("log_softmax_gradient", g, y)

    def cross_entropy(self, x: Array, labels: Array, ignored: int) -> tuple[Array, Array, Array]:
        """Each row's loss, its maximum, and the sum of its exponentials.

        Args:
            x: (rows, classes) logits, contiguous.
            labels: (rows,) int64, contiguous; one that is no class gives nan.
            ignored: rows with this label lose 0.
        """
        wide = compute_dtype(x.dtype)
        losses, tops, sums = (self.cp.empty(len(x), wide) for _ in range(3))
        if x.size:
            arguments = (x, labels, losses, tops, sums, np.int64(x.shape[1]), np.int64(ignored))
            kernel = RowKernel("cross_entropy", x.dtype, SOURCE)
            self.start(kernel, (len(x),), threads(x.shape[1]), arguments)
        return losses, tops, sums

    def cross_entropy_gradient(
        self, x: Array, labels: Array, saved: tuple[Array, Array], scales: Array, ignored: int
    ) -> Array:
        """The gradient of the logits.

        Args:
            x: as in the forward pass.
            labels: as in the forward pass.
            saved: maximum and sum of each row.
            scales: gradient of each row's loss, or one for all; in the compute dtype.
            ignored: rows with this label get 0.
        """
        into: Array = self.cp.empty(x.shape, x.dtype)
        if x.size:
            step = 0 if scales.size == 1 else 1
            numbers: tuple[Any, ...] = (np.int64(x.shape[1]), np.int64(step), np.int64(ignored))
            kernel = RowKernel("cross_entropy_gradient", x.dtype, SOURCE)
            arguments = (x, labels, *saved, scales, into, *numbers)
            self.start(kernel, (len(x),), threads(x.shape[1]), arguments)
        return into
