"""Stateless layers and losses: `import psframework.nn.functional as F`. Names and argument order are torch's.

Inputs are Tensors or arrays; arrays are constants. Arguments of torch without counterpart here are left out.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from psframework.autograd import Tensor
from psframework.autograd.ops.activation import gelu, relu, sigmoid, tanh
from psframework.autograd.ops.adaptive import (
    adaptive_avg_pool1d,
    adaptive_avg_pool2d,
    adaptive_max_pool1d,
    adaptive_max_pool2d,
)
from psframework.autograd.ops.arithmetic import divide, maximum
from psframework.autograd.ops.attention import scaled_dot_product_attention as _attention
from psframework.autograd.ops.batch_norm import Running
from psframework.autograd.ops.batch_norm import batch_norm as _batch_norm
from psframework.autograd.ops.conv import conv1d, conv2d
from psframework.autograd.ops.conv_transpose import conv_transpose1d, conv_transpose2d
from psframework.autograd.ops.cross_entropy import cross_entropy
from psframework.autograd.ops.dropout import channel_dropout as _channel_dropout
from psframework.autograd.ops.dropout import dropout as _dropout
from psframework.autograd.ops.embedding import embedding
from psframework.autograd.ops.embedding_bag import embedding_bag
from psframework.autograd.ops.gates import (
    celu,
    elu,
    hardsigmoid,
    hardswish,
    hardtanh,
    leaky_relu,
    logsigmoid,
    mish,
    prelu,
    relu6,
    selu,
    silu,
    softplus,
    softsign,
)
from psframework.autograd.ops.gates import glu as _glu
from psframework.autograd.ops.group_norm import group_norm, instance_norm
from psframework.autograd.ops.interpolate import interpolate
from psframework.autograd.ops.layer_norm import layer_norm, rms_norm
from psframework.autograd.ops.likelihood import (
    binary_cross_entropy,
    binary_cross_entropy_with_logits,
    kl_div,
)
from psframework.autograd.ops.matmul import linear
from psframework.autograd.ops.nll import nll_loss
from psframework.autograd.ops.pad import pad as _pad
from psframework.autograd.ops.pool import avg_pool1d, avg_pool2d, max_pool1d, max_pool2d
from psframework.autograd.ops.regression import huber_loss, l1_loss, mse_loss, smooth_l1_loss
from psframework.autograd.ops.similarity import cosine_embedding_loss, margin_ranking_loss
from psframework.autograd.ops.similarity import cosine_similarity as _cosine_similarity
from psframework.autograd.ops.softmax import log_softmax as _log_softmax
from psframework.autograd.ops.softmax import softmax as _softmax
from psframework.autograd.ops.vector_norm import norm
from psframework.autograd.record import as_tensor
from psframework.backend import Array
from psframework.errors import ArgumentError
from psframework.nn.random import generator

__all__ = [
    "adaptive_avg_pool1d",
    "adaptive_avg_pool2d",
    "adaptive_max_pool1d",
    "adaptive_max_pool2d",
    "avg_pool1d",
    "avg_pool2d",
    "batch_norm",
    "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
    "celu",
    "conv1d",
    "conv2d",
    "conv_transpose1d",
    "conv_transpose2d",
    "cosine_embedding_loss",
    "cosine_similarity",
    "cross_entropy",
    "dropout",
    "dropout1d",
    "dropout2d",
    "elu",
    "embedding",
    "embedding_bag",
    "gelu",
    "glu",
    "group_norm",
    "hardsigmoid",
    "hardswish",
    "hardtanh",
    "huber_loss",
    "instance_norm",
    "interpolate",
    "kl_div",
    "l1_loss",
    "layer_norm",
    "leaky_relu",
    "linear",
    "log_softmax",
    "logsigmoid",
    "margin_ranking_loss",
    "max_pool1d",
    "max_pool2d",
    "mish",
    "mse_loss",
    "nll_loss",
    "normalize",
    "pad",
    "prelu",
    "relu",
    "relu6",
    "rms_norm",
    "scaled_dot_product_attention",
    "selu",
    "sigmoid",
    "silu",
    "smooth_l1_loss",
    "softmax",
    "softplus",
    "softsign",
    "tanh",
]


def pad(input: Tensor | Array, pad: Sequence[int], mode: str = "constant", value: float = 0.0) -> Tensor:
    """`input` with a border; negative widths cut off.

    Args:
        input: any shape.
        pad: elements before and after the last axis, then before and after the one before it, and so on.
        mode: `constant`, `reflect`, `replicate` or `circular`.
        value: the number of mode `constant`.
    """
    x = as_tensor(input, "pad")
    if len(pad) % 2 or len(pad) > 2 * x.ndim:
        raise ArgumentError(f"pad: {tuple(pad)} is no pair for each of the last axes of shape {x.shape}")
    pairs = list(zip(pad[::2], pad[1::2]))[::-1]
    if any(n < 0 for n in pad):
        cuts = [
            slice(max(0, -before), n - max(0, -after))
            for (before, after), n in zip(pairs, x.shape[-len(pairs) :])
        ]
        x = x[(..., *cuts)]
    widths = [(0, 0)] * (x.ndim - len(pairs)) + [(max(0, before), max(0, after)) for before, after in pairs]
    return _pad(x, widths, mode, value)


def softmax(input: Tensor | Array, dim: int = -1) -> Tensor:
    """exp(x) / sum(exp(x)) along `dim`."""
    return _softmax(input, dim)


def log_softmax(input: Tensor | Array, dim: int = -1) -> Tensor:
    """The logarithm of `softmax`, without overflow."""
    return _log_softmax(input, dim)


def normalize(input: Tensor | Array, p: float = 2.0, dim: int = 1, eps: float = 1e-12) -> Tensor:
    """`input` divided by its `p`-norm along `dim`, or by `eps` where that is smaller."""
    return divide(input, maximum(norm(input, p, dim, True), eps))


def glu(input: Tensor | Array, dim: int = -1) -> Tensor:
    """The first half of `input` along `dim` times the sigmoid of the second."""
    return _glu(input, dim)


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
    return _dropout(input, p, rng or generator(input), training)


def dropout1d(
    input: Tensor | Array, p: float = 0.5, training: bool = True, *, rng: np.random.Generator | None = None
) -> Tensor:
    """As `dropout`, of whole channels of (batch, channels, length) or (channels, length)."""
    return _channel_dropout("dropout1d", input, p, rng or generator(input), training, (2, 3))


def dropout2d(
    input: Tensor | Array, p: float = 0.5, training: bool = True, *, rng: np.random.Generator | None = None
) -> Tensor:
    """As `dropout`, of whole channels of (batch, channels, rows, columns) or (channels, rows, columns)."""
    return _channel_dropout("dropout2d", input, p, rng or generator(input), training, (3, 4))


def scaled_dot_product_attention(
    query: Tensor | Array,
    key: Tensor | Array,
    value: Tensor | Array,
    attn_mask: Tensor | Array | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    *,
    rng: np.random.Generator | None = None,
) -> Tensor:
    """softmax(query @ key.T * scale + mask) @ value.

    Args:
        query: (..., queries, width).
        key: (..., keys, width).
        value: (..., keys, features).
        attn_mask: broadcast to (..., queries, keys). Of booleans: True where a query may look. Of floats:
            added to the scores; it may require grad. A query that may look nowhere gets zeros.
        dropout_p: probability with which a weight is dropped, in evaluation too: pass 0 there.
        is_causal: a query looks at keys up to its own place only, counted from the first; goes with a mask.
        scale: of the scores; 1 / sqrt(width) if None.
        rng: decides what is dropped; the generator that `manual_seed` sets if None.
    """
    rng = rng or generator(query)
    return _attention(query, key, value, attn_mask, dropout_p, is_causal, scale, rng=rng)


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


def cosine_similarity(x1: Tensor | Array, x2: Tensor | Array, dim: int = 1, eps: float = 1e-8) -> Tensor:
    """Cosine of the angle between vectors along `dim`, each divided by its length or `eps`."""
    return _cosine_similarity(x1, x2, dim, eps)
