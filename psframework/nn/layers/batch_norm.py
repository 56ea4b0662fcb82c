"""Batch normalization (Ioffe and Szegedy, arXiv:1502.03167)."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from psframework.autograd import Tensor, is_recomputing
from psframework.backend import Array
from psframework.errors import ArgumentError
from psframework.nn import functional as F
from psframework.nn import init
from psframework.nn.making import empty
from psframework.nn.module import Module
from psframework.nn.parameter import Parameter


class _BatchNorm(Module):
    """Normalizes each channel (axis 1), by the batch's statistics in training and running ones otherwise.

    Under a parameter server the running statistics stay local.

    Args:
        num_features: number of channels.
        eps: added to the variance.
        momentum: share of each batch in the running statistics; None averages all batches alike.
        affine: whether to scale and shift by `weight` and `bias`.
        track_running_stats: False always normalizes by the batch.
        dtype: of parameters and statistics; float32 if None.

    Attributes:
        weight: (num_features,), initially ones; or None.
        bias: (num_features,), initially zeros; or None.
        running_mean, running_var: (num_features,); or None.
        num_batches_tracked: int64 scalar array; or None.
    """

    _ndims: ClassVar[tuple[int, ...]]
    weight: Parameter | None
    bias: Parameter | None
    running_mean: Array | None
    running_var: Array | None
    num_batches_tracked: Array | None

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        *,
        dtype: Any = None,
    ):
        if num_features < 1:
            raise ArgumentError(f"{type(self).__name__} needs at least one channel, not {num_features}")
        self.num_features, self.eps, self.momentum = num_features, eps, momentum
        self.affine, self.track_running_stats = affine, track_running_stats
        for name in ("weight", "bias"):
            self.register_parameter(name, Parameter(empty(num_features, dtype)) if affine else None)
        for name in ("running_mean", "running_var"):
            self.register_buffer(name, empty(num_features, dtype) if track_running_stats else None)
        self.register_buffer("num_batches_tracked", np.zeros((), np.int64) if track_running_stats else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Sets the initial values, and forgets the running statistics."""
        if self.weight is not None and self.bias is not None:
            init.ones_(self.weight)
            init.zeros_(self.bias)
        self.reset_running_stats()

    def reset_running_stats(self) -> None:
        """Forgets the running statistics."""
        if self.running_mean is not None and self.running_var is not None:
            self.running_mean[...] = 0
            self.running_var[...] = 1
        if self.num_batches_tracked is not None:
            self.num_batches_tracked[...] = 0

    def forward(self, x: Tensor | Array) -> Tensor:
        """Applies the layer."""
        if x.ndim not in self._ndims:
            raise ArgumentError(f"{type(self).__name__} takes {self._ndims} dimensions, not shape {x.shape}")
        by_batch = self.training or self.running_mean is None
        return F.batch_norm(
            x,
            self.running_mean,
            self.running_var,
            self.weight,
            self.bias,
            by_batch,
            self._count_batch() if self.training else 0.0,
            self.eps,
        )

    def _count_batch(self) -> float:
        """Counts a training batch, and returns its share in the running statistics."""
        if self.num_batches_tracked is None:
            return 0.0
        if not is_recomputing():
            self.num_batches_tracked += 1
        return 1 / int(self.num_batches_tracked) if self.momentum is None else self.momentum

    def extra_repr(self) -> str:
        """What stands in the parentheses of the module's repr."""
        return (
            f"{self.num_features}, eps={self.eps}, momentum={self.momentum}, affine={self.affine}, "
            f"track_running_stats={self.track_running_stats}"
        )


class BatchNorm1d(_BatchNorm):
    """Batch normalization of (batch, channels) or (batch, channels, length)."""

    _ndims = (2, 3)


class BatchNorm2d(_BatchNorm):
    """Batch normalization of (batch, channels, rows, columns)."""

    _ndims = (4,)
