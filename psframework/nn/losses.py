"""Losses as modules, for places that take a module; each calls its function in `functional`."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from psframework.autograd import Tensor
from psframework.backend import Array
from psframework.errors import ArgumentError
from psframework.nn import functional
from psframework.nn.module import Module


class _Loss(Module):
    """A loss of (prediction, target).

    Args:
        reduction: "mean", "sum" or "none".
    """

    _function: ClassVar[Callable[..., Tensor]]

    def __init__(self, *, reduction: str = "mean"):
        if reduction not in ("mean", "sum", "none"):
            raise ArgumentError(f'reduction must be "mean", "sum" or "none", not {reduction!r}')
        self.reduction = reduction

    def forward(self, input: Tensor | Array, target: Tensor | Array) -> Tensor:
        """The loss: a scalar, or one for each element if reduction is "none"."""
        return type(self)._function(input, target, reduction=self.reduction)


class CrossEntropyLoss(_Loss):
    """Cross-entropy of logits (batch, classes, ...) against integer targets (batch, ...)."""

    _function = staticmethod(functional.cross_entropy)


class NLLLoss(_Loss):
    """Negative log-likelihood of log-probabilities (batch, classes) against integer targets (batch,)."""

    _function = staticmethod(functional.nll_loss)


class MSELoss(_Loss):
    """Squared difference."""

    _function = staticmethod(functional.mse_loss)


class L1Loss(_Loss):
    """Absolute difference."""

    _function = staticmethod(functional.l1_loss)


class BCEWithLogitsLoss(_Loss):
    """Cross-entropy of sigmoid(logits) against probabilities."""

    _function = staticmethod(functional.binary_cross_entropy_with_logits)
