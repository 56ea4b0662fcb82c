"""Losses of probabilities: binary cross-entropy and the Kullback-Leibler divergence. Each is one node."""

from __future__ import annotations

import numpy as np

from psframework import backend
from psframework.autograd.ops.loss import (
    REDUCTIONS,
    check_reduction,
    constant_array,
    floating_pair,
    loss_node,
)
from psframework.autograd.record import guarded
from psframework.autograd.tensor import Tensor
from psframework.backend import Array
from psframework.errors import ArgumentError

_SMALLEST_LOG = -100.0  # as torch: one certain mistake must not make the loss of a batch infinite
_SMALLEST_VARIANCE = 1e-12


@guarded("binary_cross_entropy")
def binary_cross_entropy(
    input: Tensor | Array,
    target: Tensor | Array,
    weight: Tensor | Array | None = None,
    *,
    reduction: str = "mean",
) -> Tensor:
    """Cross-entropy of probabilities; `binary_cross_entropy_with_logits` is more exact and quicker.

    Logarithms are limited to -100, as torch's.

    Args:
        input: probabilities of any shape, in [0, 1].
        target: probabilities of the same shape.
        weight: of each element, a constant that broadcasts to that shape.
        reduction: "mean", "sum" or "none".
    """
    name = "binary_cross_entropy"
    check_reduction(name, reduction)
    input, target = floating_pair(name, input, target)
    x, t = backend.widen(input._data), backend.widen(target._data)
    xp = backend.xp(x)
    if x.size and not (x.min() >= 0 and x.max() <= 1):
        raise ArgumentError(
            f"{name}: input must be probabilities in [0, 1]: apply a sigmoid, or take "
            "binary_cross_entropy_with_logits"
        )
    factors = _factors(name, "weight", weight, x)
    with np.errstate(divide="ignore", invalid="ignore"):
        log_x = xp.maximum(xp.log(x), _SMALLEST_LOG)
        log_rest = xp.maximum(xp.log1p(-x), _SMALLEST_LOG)
    losses = _weighted(-(t * log_x + (1 - t) * log_rest), factors)
    needs = input._requires_grad, target._requires_grad

    def derivatives(gradient: Array) -> tuple[Array | None, Array | None]:
        g = _weighted(gradient, factors)
        return (
            g * ((x - t) / xp.maximum(x * (1 - x), _SMALLEST_VARIANCE)) if needs[0] else None,
            g * (log_rest - log_x) if needs[1] else None,
        )

    return loss_node(name, losses, (input, target), derivatives, reduction, saved=(input, target))


@guarded("binary_cross_entropy_with_logits")
def binary_cross_entropy_with_logits(
    input: Tensor | Array,
    target: Tensor | Array,
    weight: Tensor | Array | None = None,
    *,
    reduction: str = "mean",
    pos_weight: Tensor | Array | None = None,
) -> Tensor:
    """Cross-entropy of sigmoid(input) against probabilities; stable for large logits.

    Args:
        input: logits of any shape.
        target: probabilities of the same shape.
        weight: of each element, a constant that broadcasts to that shape.
        reduction: "mean", "sum" or "none".
        pos_weight: of the positive part of each element, a constant that broadcasts to that shape: above 1 it
            raises recall, below 1 precision.
    """
    name = "binary_cross_entropy_with_logits"
    check_reduction(name, reduction)
    input, target = floating_pair(name, input, target)
    x, t = backend.widen(input._data), backend.widen(target._data)
    xp = backend.xp(x)
    factors, positive = _factors(name, "weight", weight, x), _factors(name, "pos_weight", pos_weight, x)
    # -log(sigmoid(x)) is log(1 + exp(-x)) = max(-x, 0) + log1p(exp(-|x|)), which cannot overflow.
    missed = xp.log1p(xp.exp(-abs(x)))
    missed += xp.maximum(-x, 0)
    share = None if positive is None else 1 + (positive - 1) * t
    losses = _weighted((1 - t) * x + (missed if share is None else share * missed), factors)
    needs = input._requires_grad, target._requires_grad

    def derivatives(gradient: Array) -> tuple[Array | None, Array | None]:
        g = _weighted(gradient, factors)
        into_x = into_t = None
        if needs[0]:
            with np.errstate(over="ignore"):  # 1 / inf is 0
                missing = 1 / (1 + xp.exp(x))  # 1 - sigmoid(x)
            into_x = g * (1 - t - (missing if share is None else share * missing))
        if needs[1]:
            into_t = g * -x if positive is None else g * ((positive - 1) * missed - x)
        return into_x, into_t

    return loss_node(
        name, backend.as_array(losses), (input, target), derivatives, reduction, saved=(input, target)
    )


@guarded("kl_div")
def kl_div(
    input: Tensor | Array, target: Tensor | Array, *, reduction: str = "mean", log_target: bool = False
) -> Tensor:
    """Kullback-Leibler divergence of the distribution `input` from `target`: target * (log(target) - input).

    Args:
        input: log-probabilities of any shape.
        target: probabilities of the same shape, or with `log_target` their logarithms.
        reduction: "batchmean" divides the sum by the length of the first axis, which gives the divergence
            itself; "mean" divides by the number of elements; "sum" or "none".
        log_target: whether `target` is given as logarithms.
    """
    check_reduction("kl_div", reduction, ("batchmean", *REDUCTIONS))
    input, target = floating_pair("kl_div", input, target)
    x, t = backend.widen(input._data), backend.widen(target._data)
    xp = backend.xp(x)
    if log_target:
        chance, log_chance = xp.exp(t), t
    else:
        chance = t
        with np.errstate(divide="ignore", invalid="ignore"):
            log_chance = xp.where(t == 0, 0, xp.log(t))  # p * log(p) is 0 at 0
    losses = chance * (log_chance - x)
    needs = input._requires_grad, target._requires_grad

    def derivatives(gradient: Array) -> tuple[Array | None, Array | None]:
        by_target = None
        if needs[1]:
            by_target = gradient * ((log_chance - x + 1) * (chance if log_target else 1))
        return gradient * -chance if needs[0] else None, by_target

    if reduction == "batchmean" and not x.ndim:
        raise ArgumentError('kl_div: reduction "batchmean" needs a batch axis: use "sum"')
    divisor = x.shape[0] if reduction == "batchmean" else None
    return loss_node(
        "kl_div",
        backend.as_array(losses),
        (input, target),
        derivatives,
        reduction,
        divisor=divisor,
        saved=(input, target),
    )


def _factors(name: str, what: str, value: Tensor | Array | None, like: Array) -> Array | None:
    """A constant weight, which must broadcast to the shape of `like`."""
    factors = constant_array(name, what, value, like.dtype)
    if factors is not None:
        pairs = zip(reversed(factors.shape), reversed(like.shape))
        if factors.ndim > like.ndim or any(ours not in (1, theirs) for ours, theirs in pairs):
            raise ArgumentError(
                f"{name}: {what} {factors.shape} does not broadcast to the input {like.shape}"
            )
    return factors


def _weighted(values: Array, factors: Array | None) -> Array:
    return backend.as_array(values) if factors is None else backend.as_array(values * factors)
