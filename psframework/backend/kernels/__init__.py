"""Fused kernels for CuPy arrays: what takes several passes over memory otherwise, in one."""

from psframework.backend.kernels.batch_norm import BatchNormKernels
from psframework.backend.kernels.gelu import GeluKernels
from psframework.backend.kernels.layer_norm import LayerNormKernels
from psframework.backend.kernels.softmax import SoftmaxKernels
from psframework.backend.kernels.updates import UpdateKernels

__all__ = ["Kernels"]


class Kernels(BatchNormKernels, GeluKernels, LayerNormKernels, SoftmaxKernels, UpdateKernels):
    """All of them, for one array library. They are started on the current device and stream."""
