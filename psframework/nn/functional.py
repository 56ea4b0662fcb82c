"""Stateless layers and losses: `import psframework.nn.functional as F`. Names and argument order are torch's.

Inputs are Tensors or arrays; arrays are constants. Arguments of torch without counterpart here are left out.
"""

from __future__ import annotations

import numpy as np

from psframework.autograd import Tensor
from psframework.autograd.ops.activation import gelu, relu, sigmoid, tanh
from psframework.autograd.ops.arithmetic import maximum
from psframework.autograd.ops.conv import conv2d
from psframework.autograd.ops.elementwise import absolute, exp, log
from psframework.autograd.ops.index import index
from psframework.autograd.ops.loss import cross_entropy, mse_loss
from psframework.autograd.ops.matmul import linear
from psframework.autograd.ops.norm import Running
from psframework.autograd.ops.norm import batch_norm as _batch_norm
from psframework.autograd.ops.norm import dropout as _dropout
from psframework.autograd.ops.pool import avg_pool2d, max_pool2d
from psframework.autograd.ops.reduce import mean
from psframework.autograd.ops.reduce import sum as _sum
from psframework.autograd.ops.softmax import log_softmax as _log_softmax
from psframework.autograd.ops.softmax import softmax as _softmax
from psframework.backend import Array, xp
from psframework.errors import ArgumentError
from psframework.nn import init

__all__ = [
    "avg_pool2d",
    "batch_norm",
    "binary_cross_entropy_with_logits",
    "conv2d",
    "cross_entropy",
    "dropout",
    "gelu",
    "l1_loss",
    "linear",
    "log_softmax",
    "max_pool2d",
    "mse_loss",
    "nll_loss",
    "relu",
    "sigmoid",
    "softmax",
    "tanh",
]


def softmax(input: Tensor | Array, dim: int = -1) -> Tensor:
    """exp(x) / sum(exp(x)) along `dim`."""
    return _softmax(input, dim)


def log_softmax(input: Tensor | Array, dim: int = -1) -> Tensor:
    """The logarithm of `softmax`, without overflow."""
    return _log_softmax(input, dim)


def dropout(
    input: Tensor | Array, p: float = 0.5, training: bool = True, *, rng: np.random.Generator | None = None
) -> Tensor:
    """In training, zeroes each element with probability `p` and scales the others by 1 / (1 - p).

    Args:
        input: any shape.
        p: in [0, 1].
        training: False returns the input.
        rng: decides what is dropped; the generator that `manual_seed` sets if None.
    """
    return _dropout(input, p, rng or init.generator(), training)


def batch_norm(
    input: Tensor | Array,
    running_mean: Array | None,
    running_var: Array | None,
    weight: Tensor | Array | None = None,
    bias: Tensor | Array | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """Normalizes each channel (axis 1) over all other axes.

    Args:
        input: (batch, channels, ...).
        running_mean: (channels,), moved in place in training, used otherwise; None to keep none.
        running_var: likewise.
        weight: (channels,) factor, or None.
        bias: (channels,) summand, or None.
        training: normalize by the batch's own statistics.
        momentum: share of the batch in the running statistics.
        eps: added to the variance.
    """
    if (running_mean is None) != (running_var is None):
        raise ArgumentError("batch_norm takes both running_mean and running_var, or neither")
    running = None
    if running_mean is not None and running_var is not None:
        running = Running(running_mean, running_var)
    return _batch_norm(input, running, weight, bias, training, momentum, eps)


def nll_loss(input: Tensor | Array, target: Tensor | Array, *, reduction: str = "mean") -> Tensor:
    """Negative log-likelihood: minus the target's entry of each row of log-probabilities.

    Args:
        input: (batch, classes) log-probabilities, as `log_softmax` gives.
        target: (batch,) integers.
        reduction: "mean", "sum" or "none".
    """
    labels = target.data if isinstance(target, Tensor) else target
    if labels.dtype.kind not in "iu" or len(input.shape) != 2 or labels.shape != input.shape[:1]:
        raise ArgumentError(
            f"nll_loss: input {input.shape} needs integer targets of shape {input.shape[:1]}, "
            f"got {labels.dtype} of shape {labels.shape}"
        )
    rows = xp(labels).arange(len(labels))
    return _reduced("nll_loss", -index(input, (rows, labels)), reduction)


def l1_loss(input: Tensor | Array, target: Tensor | Array, *, reduction: str = "mean") -> Tensor:
    """|input - target|, of equal shapes; reduction "mean", "sum" or "none"."""
    _require_same_shape("l1_loss", input, target)
    return _reduced("l1_loss", absolute(input - target), reduction)


def binary_cross_entropy_with_logits(
    input: Tensor | Array, target: Tensor | Array, *, reduction: str = "mean"
) -> Tensor:
    """Cross-entropy of sigmoid(input) against probabilities, of equal shapes; stable for large logits."""
    _require_same_shape("binary_cross_entropy_with_logits", input, target)
    # max(x, 0) - x*t + log(1 + exp(-|x|)) is -t*log(s(x)) - (1-t)*log(1-s(x)) without overflow.
    losses = maximum(input, 0) - input * target + log(exp(-absolute(input)) + 1)
    return _reduced("binary_cross_entropy_with_logits", losses, reduction)


def _require_same_shape(name: str, input: Tensor | Array, target: Tensor | Array) -> None:
    if input.shape != target.shape:
        raise ArgumentError(f"{name}: input has shape {input.shape}, target {target.shape}")


def _reduced(name: str, losses: Tensor, reduction: str) -> Tensor:
    if reduction == "mean":
        return mean(losses)
    if reduction == "sum":
        return _sum(losses)
    if reduction != "none":
        raise ArgumentError(f'{name}: reduction must be "mean", "sum" or "none", not {reduction!r}')
    return losses
