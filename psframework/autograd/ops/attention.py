"""Scaled dot-product attention (Vaswani et al., 2017) in one node."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias, cast

import numpy as np

from psframework import backend
from psframework.autograd.random_state import replayable
from psframework.autograd.record import as_tensor, constant, guarded, record_many, recording, sum_to
from psframework.autograd.tensor import Tensor
from psframework.backend import Array
from psframework.errors import ArgumentError

Operands: TypeAlias = tuple[Tensor, Tensor, Tensor, Tensor | None]

_NAME = "scaled_dot_product_attention"


@guarded(_NAME)
def scaled_dot_product_attention(
    query: Tensor | Array,
    key: Tensor | Array,
    value: Tensor | Array,
    attn_mask: Tensor | Array | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    *,
    rng: Any = None,
) -> Tensor:
    """softmax(query @ key.T * scale + mask) @ value.

    Args:
        query: (..., queries, width), floating. 16-bit floats are computed in float32. Axes before the last
            two are broadcast.
        key: (..., keys, width).
        value: (..., keys, features).
        attn_mask: broadcast to (..., queries, keys). Of booleans: True where a query may look. Of floats:
            added to the scores; it may require grad. A query that may look nowhere gets zeros.
        dropout_p: probability with which a weight is dropped; the others grow by 1 / (1 - dropout_p).
        is_causal: a query looks at keys up to its own place only, counted from the first.
        scale: of the scores; 1 / sqrt(width) if None.
        rng: a `numpy.random.Generator`, or CuPy's on a GPU; it decides what is dropped.

    Returns:
        (..., queries, features).

    Raises:
        ArgumentError: shapes or dtypes that do not fit, or dropout without `rng`.
    """
    operands = _operands(query, key, value, attn_mask, is_causal)
    return _attend(operands, dropout_p, scale, rng, need_weights=False)[0]


@guarded(_NAME)
def attention_with_weights(
    query: Tensor | Array,
    key: Tensor | Array,
    value: Tensor | Array,
    attn_mask: Tensor | Array | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    *,
    rng: Any = None,
) -> tuple[Tensor, Tensor]:
    """As `scaled_dot_product_attention`, and the weights (..., queries, keys), after dropout."""
    operands = _operands(query, key, value, attn_mask, is_causal)
    out, weights = _attend(operands, dropout_p, scale, rng, need_weights=True)
    return out, weights


class _Kept(NamedTuple):
    """What the backward reads.

    Attributes:
        q: scaled query.
        k, v: key and value.
        probabilities: (..., queries, keys).
        factors: what dropout multiplied them by, or None.
        out: the result.
        scale: of the query.
    """

    q: Array
    k: Array
    v: Array
    probabilities: Array
    factors: Array | None
    out: Array
    scale: float


def _attend(
    inputs: Operands, dropout_p: float, scale: float | None, rng: Any, need_weights: bool
) -> tuple[Tensor, ...]:
    mask = inputs[3]
    q, k, v = [_for_products(backend.widen(tensor._data)) for tensor in inputs[:3]]
    dtype = np.result_type(*(tensor.dtype for tensor in inputs[:3]))
    if scale is None:
        scale = 1 / math.sqrt(max(q.shape[-1], 1))
    q = q * scale
    xp = backend.xp(q)
    probabilities = _softmax(_masked(xp.matmul(q, k.swapaxes(-1, -2)), None if mask is None else mask._data))
    factors = _dropout(probabilities, dropout_p, rng) if dropout_p else None
    weights = probabilities if factors is None else probabilities * factors
    out = xp.matmul(weights, v)
    results = [array.astype(dtype, copy=False) for array in ([out, weights] if need_weights else [out])]
    if not recording(*inputs):
        return tuple([constant(result) for result in results])
    kept = _Kept(q, k, v, probabilities, factors, out, scale)
    wanted = [(t.shape, t.dtype) if t is not None and t._requires_grad else None for t in inputs]

    def rule(gradients: tuple[Array | None, ...]) -> Sequence[Array | None]:
        wide = [None if gradient is None else backend.widen(gradient) for gradient in gradients]
        found = _backward(kept, wide[0], wide[1] if need_weights else None)
        return [None if want is None else sum_to(gradient, *want) for gradient, want in zip(found, wanted)]

    return record_many(_NAME, results, rule, inputs, inputs[:3], saves_output=True)


def _operands(
    query: Tensor | Array,
    key: Tensor | Array,
    value: Tensor | Array,
    attn_mask: Tensor | Array | None,
    is_causal: bool,
) -> Operands:
    q, k, v = as_tensor(query, _NAME), as_tensor(key, _NAME), as_tensor(value, _NAME)
    mask = None if attn_mask is None else as_tensor(attn_mask, _NAME)
    _check(q, k, v, mask)
    return q, k, v, _with_causal(mask, q, k) if is_causal else mask


def _check(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> None:
    for name, operand in (("query", query), ("key", key), ("value", value)):
        if operand.ndim < 2:
            raise ArgumentError(f"{_NAME}: {name} needs at least two axes, not shape {operand.shape}")
        if not backend.is_floating(operand.dtype):
            raise ArgumentError(
                f"{_NAME}: {name} of dtype {operand.dtype} is not floating: convert with .astype(np.float32)"
            )
    if query.shape[-1] != key.shape[-1]:
        raise ArgumentError(f"{_NAME}: query {query.shape} and key {key.shape} differ in their last axis")
    if key.shape[-2] != value.shape[-2]:
        raise ArgumentError(f"{_NAME}: key {key.shape} and value {value.shape} differ in the axis of keys")
    if mask is not None and mask.dtype != bool and not backend.is_floating(mask.dtype):
        raise ArgumentError(f"{_NAME}: attn_mask must be of booleans or floats, not {mask.dtype}")


def _with_causal(mask: Tensor | None, query: Tensor, key: Tensor) -> Tensor:
    """The mask, and the future hidden."""
    xp = backend.xp(query._data)
    past = xp.arange(key.shape[-2]) <= xp.arange(query.shape[-2])[:, None]
    if mask is None or mask.dtype == bool:
        return constant(past if mask is None else past & mask._data)
    return mask + constant(xp.where(past, 0, -np.inf).astype(mask.dtype))


def _for_products(array: Array) -> Array:
    """NumPy multiplies matrices by BLAS only if one of their axes is contiguous."""
    if array.itemsize in array.strides[-2:]:
        return array
    return cast(Array, backend.xp(array).ascontiguousarray(array))


def _masked(scores: Array, mask: Array | None) -> Array:
    """Scores with the mask applied, in place unless the mask has more axes."""
    if mask is None:
        return scores
    xp = backend.xp(scores)
    shape = np.broadcast_shapes(scores.shape, mask.shape)
    if scores.shape != shape:
        scores = xp.broadcast_to(scores, shape).copy()
    if mask.dtype == bool:
        xp.copyto(scores, -np.inf, where=~mask)
    else:
        scores += mask.astype(scores.dtype, copy=False)
    return scores


def _softmax(scores: Array) -> Array:
    """Along the last axis, in place. A row of -inf becomes one of zeros."""
    if not scores.shape[-1]:
        return scores
    xp = backend.xp(scores)
    top = scores.max(axis=-1, keepdims=True)
    scores -= xp.maximum(top, np.finfo(scores.dtype).min, out=top)
    xp.exp(scores, out=scores)
    total = scores.sum(axis=-1, keepdims=True)
    # The largest element gave 1: only a row of nothing has less.
    scores /= xp.maximum(total, 1, out=total)
    return scores


def _dropout(probabilities: Array, p: float, rng: Any) -> Array:
    if not 0 <= p < 1:
        raise ArgumentError(f"{_NAME}: dropout_p={p} must lie in [0, 1)")
    if rng is None:
        raise ArgumentError(f"{_NAME}: dropout needs rng, a numpy.random.Generator")
    kept = backend.array_like(
        replayable(rng).random(probabilities.shape, dtype="float32") >= p, probabilities
    )
    return cast(Array, kept.astype(probabilities.dtype) * probabilities.dtype.type(1 / (1 - p)))


def _backward(kept: _Kept, into_out: Array | None, into_weights: Array | None) -> tuple[Array, ...]:
    q, k, v, probabilities, factors, out, scale = kept
    xp = backend.xp(q)
    g = xp.zeros_like(out) if into_out is None else _for_products(into_out)
    weights = probabilities if factors is None else probabilities * factors
    scores = xp.matmul(g, v.swapaxes(-1, -2))
    # What softmax's derivative subtracts, the sum of gradient * weight over the keys, is this shorter sum.
    total = (g * out).sum(axis=-1, keepdims=True)
    if into_weights is not None:
        scores += into_weights
        total += (into_weights * weights).sum(axis=-1, keepdims=True)
    if factors is not None:
        scores *= factors
    scores -= total
    scores *= probabilities
    into_q = xp.matmul(scores, k)
    into_q *= scale
    return into_q, xp.matmul(scores.swapaxes(-1, -2), q), xp.matmul(weights.swapaxes(-1, -2), g), scores
