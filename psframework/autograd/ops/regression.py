"""Losses of regression: squared, absolute, and Huber's between them. Each is one node."""

from __future__ import annotations

from collections.abc import Callable

from psframework import backend
from psframework.autograd.ops.loss import check_reduction, constant_array, floating_pair, loss_node
from psframework.autograd.record import guarded
from psframework.autograd.tensor import Tensor
from psframework.backend import Array
from psframework.errors import ArgumentError


@guarded("mse_loss")
def mse_loss(
    input: Tensor | Array,
    target: Tensor | Array,
    *,
    reduction: str = "mean",
    weight: Tensor | Array | None = None,
) -> Tensor:
    """Squared error.

    Args:
        input: any shape, floating.
        target: the same shape: a loss that broadcasts is nearly always a mistake.
        reduction: "mean", "sum" or "none".
        weight: of each element, a constant of the same shape; the mean is then divided by its sum.
    """
    return _of_difference(
        "mse_loss", input, target, weight, reduction, lambda d: d * d, lambda d, g: d * (2 * g)
    )


@guarded("l1_loss")
def l1_loss(
    input: Tensor | Array,
    target: Tensor | Array,
    *,
    reduction: str = "mean",
    weight: Tensor | Array | None = None,
) -> Tensor:
    """Absolute error; arguments as those of `mse_loss`. Its derivative at 0 is 0."""
    return _of_difference("l1_loss", input, target, weight, reduction, abs, lambda d, g: _sign(d) * g)


@guarded("huber_loss")
def huber_loss(
    input: Tensor | Array,
    target: Tensor | Array,
    reduction: str = "mean",
    delta: float = 1.0,
    weight: Tensor | Array | None = None,
) -> Tensor:
    """Half the squared error up to `delta`, linear beyond (Huber, Annals of Mathematical Statistics, 1964).

    Args:
        input: any shape, floating.
        target: the same shape.
        reduction: "mean", "sum" or "none".
        delta: where it turns linear, above 0.
        weight: of each element, a constant of the same shape; the mean is over the number of elements.
    """
    if not delta > 0:
        raise ArgumentError(f"huber_loss: delta must be above 0, not {delta}")
    return _of_difference(
        "huber_loss", input, target, weight, reduction, *_huber(delta, 1.0), weighted_mean=False
    )


@guarded("smooth_l1_loss")
def smooth_l1_loss(
    input: Tensor | Array, target: Tensor | Array, *, reduction: str = "mean", beta: float = 1.0
) -> Tensor:
    """Huber's loss over `beta`: its slope is 1 beyond `beta` (Girshick, arXiv:1504.08083).

    Args:
        input: any shape, floating.
        target: the same shape.
        reduction: "mean", "sum" or "none".
        beta: where it turns linear; 0 makes it `l1_loss`.
    """
    if beta < 0:
        raise ArgumentError(f"smooth_l1_loss: beta must not be negative, not {beta}")
    if beta == 0:
        return l1_loss(input, target, reduction=reduction)
    return _of_difference("smooth_l1_loss", input, target, None, reduction, *_huber(beta, 1 / beta))


def _huber(delta: float, factor: float) -> tuple[Callable[[Array], Array], Callable[[Array, Array], Array]]:
    """Huber's loss of a difference times `factor`, and its derivative times a gradient."""

    def loss(d: Array) -> Array:
        near = backend.xp(d).clip(d, -delta, delta)
        out = near * -0.5
        out += d
        out *= near  # near * (d - near / 2)
        if factor != 1:
            out *= factor
        return out  # type: ignore[no-any-return]

    return loss, lambda d, g: backend.xp(d).clip(d, -delta, delta) * (g * factor)


def _of_difference(
    name: str,
    input: Tensor | Array,
    target: Tensor | Array,
    weight: Tensor | Array | None,
    reduction: str,
    loss: Callable[[Array], Array],
    derivative: Callable[[Array, Array], Array],
    weighted_mean: bool = True,
) -> Tensor:
    """A loss of `input - target`; `derivative(difference, gradient)` is that by `input`."""
    check_reduction(name, reduction)
    input, target = floating_pair(name, input, target)
    difference = backend.as_array(backend.widen(input._data) - backend.widen(target._data))
    factors = constant_array(name, "weight", weight, difference.dtype)
    losses, divisor = loss(difference), None
    if factors is not None:
        if factors.shape != difference.shape:
            raise ArgumentError(f"{name}: weight {factors.shape} for an input {difference.shape}")
        losses = losses * factors
        divisor = backend.xp(factors).add.reduce(factors, None) if weighted_mean else None
    needs = input._requires_grad, target._requires_grad

    def derivatives(gradient: Array) -> tuple[Array | None, Array | None]:
        g = derivative(difference, gradient if factors is None else gradient * factors)
        return g if needs[0] else None, -g if needs[1] else None

    return loss_node(name, backend.as_array(losses), (input, target), derivatives, reduction, divisor=divisor)


def _sign(array: Array) -> Array:
    return backend.xp(array).sign(array)  # type: ignore[no-any-return]
