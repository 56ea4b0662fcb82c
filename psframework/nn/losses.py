"""Losses as modules, for places that take a module; each calls its function in `functional`.

Arguments other than weights go by keyword, so that torch's old `size_average` is taken for none of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

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
    _reductions: ClassVar[tuple[str, ...]] = ("mean", "sum", "none")
    # What is handed to the function, beside the inputs.
    _options: ClassVar[tuple[str, ...]] = ("reduction",)

    def __init__(self, *, reduction: str = "mean"):
        self._set(reduction)

    def _set(self, reduction: str, **options: Any) -> None:
        if reduction not in self._reductions:
            raise ArgumentError(
                f"{type(self).__name__}: reduction {reduction!r} is none of {', '.join(self._reductions)}"
            )
        self.reduction = reduction
        for name, value in options.items():
            setattr(self, name, value)

    def _keep(self, name: str, weight: Tensor | Array | None) -> None:
        """Weights are buffers: they are saved, and go where the module goes."""
        self.register_buffer(name, weight.data if isinstance(weight, Tensor) else weight)

    def forward(self, *inputs: Tensor | Array, **named: Tensor | Array) -> Tensor:
        """The loss: a scalar, or one for each element if reduction is "none".

        Args:
            inputs: as of the function, in its order.
            named: those that are given by the function's names, such as `target`.
        """
        options = {name: getattr(self, name) for name in self._options}
        return type(self)._function(*inputs, **named, **options)

    def extra_repr(self) -> str:
        """What stands in the parentheses of the module's repr."""
        values = {name: getattr(self, name) for name in self._options}
        return ", ".join(f"{n}={v!r}" for n, v in values.items() if isinstance(v, str | int | float))


class CrossEntropyLoss(_Loss):
    """Cross-entropy of logits (batch, classes, ...) against classes (batch, ...), or probabilities.

    Args:
        weight: (classes,) factor of each class.
        ignore_index: examples of this class do not count.
        reduction: "mean", "sum" or "none".
        label_smoothing: this share of each target is spread over all classes.
    """

    _function = staticmethod(functional.cross_entropy)
    _options = ("weight", "ignore_index", "reduction", "label_smoothing")

    def __init__(
        self,
        weight: Tensor | Array | None = None,
        *,
        ignore_index: int = -100,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
    ):
        self._keep("weight", weight)
        self._set(reduction, ignore_index=ignore_index, label_smoothing=label_smoothing)


class NLLLoss(_Loss):
    """Negative log-likelihood of log-probabilities (batch, classes, ...) against classes (batch, ...).

    Args:
        weight: (classes,) factor of each class.
        ignore_index: examples of this class do not count.
        reduction: "mean", "sum" or "none".
    """

    _function = staticmethod(functional.nll_loss)
    _options = ("weight", "ignore_index", "reduction")

    def __init__(
        self, weight: Tensor | Array | None = None, *, ignore_index: int = -100, reduction: str = "mean"
    ):
        self._keep("weight", weight)
        self._set(reduction, ignore_index=ignore_index)


class MSELoss(_Loss):
    """Squared difference."""

    _function = staticmethod(functional.mse_loss)


class L1Loss(_Loss):
    """Absolute difference."""

    _function = staticmethod(functional.l1_loss)


class SmoothL1Loss(_Loss):
    """Absolute difference, squared over `2 * beta` below `beta`."""

    _function = staticmethod(functional.smooth_l1_loss)
    _options = ("reduction", "beta")

    def __init__(self, *, reduction: str = "mean", beta: float = 1.0):
        self._set(reduction, beta=beta)


class HuberLoss(_Loss):
    """Half the squared difference up to `delta`, linear beyond."""

    _function = staticmethod(functional.huber_loss)
    _options = ("reduction", "delta")

    def __init__(self, reduction: str = "mean", delta: float = 1.0):
        self._set(reduction, delta=delta)


class BCELoss(_Loss):
    """Cross-entropy of probabilities against probabilities; `weight` broadcasts to them."""

    _function = staticmethod(functional.binary_cross_entropy)
    _options = ("weight", "reduction")

    def __init__(self, weight: Tensor | Array | None = None, *, reduction: str = "mean"):
        self._keep("weight", weight)
        self._set(reduction)


class BCEWithLogitsLoss(_Loss):
    """Cross-entropy of sigmoid(logits) against probabilities.

    Args:
        weight: of each element, broadcast.
        reduction: "mean", "sum" or "none".
        pos_weight: of the positive part of each element, broadcast.
    """

    _function = staticmethod(functional.binary_cross_entropy_with_logits)
    _options = ("weight", "reduction", "pos_weight")

    def __init__(
        self,
        weight: Tensor | Array | None = None,
        *,
        reduction: str = "mean",
        pos_weight: Tensor | Array | None = None,
    ):
        self._keep("weight", weight)
        self._keep("pos_weight", pos_weight)
        self._set(reduction)


class KLDivLoss(_Loss):
    """Kullback-Leibler divergence of log-probabilities from a target distribution, or its logarithms."""

    _function = staticmethod(functional.kl_div)
    _reductions = ("batchmean", *_Loss._reductions)
    _options = ("reduction", "log_target")

    def __init__(self, *, reduction: str = "mean", log_target: bool = False):
        self._set(reduction, log_target=log_target)


class CosineEmbeddingLoss(_Loss):
    """1 - cosine of pairs (target 1), max(0, cosine - margin) of others (target -1); of (x1, x2, target)."""

    _function = staticmethod(functional.cosine_embedding_loss)
    _options = ("margin", "reduction")

    def __init__(self, margin: float = 0.0, *, reduction: str = "mean"):
        self._set(reduction, margin=margin)


class MarginRankingLoss(_Loss):
    """max(0, margin - target * (x1 - x2)); of (x1, x2, target)."""

    _function = staticmethod(functional.margin_ranking_loss)
    _options = ("margin", "reduction")

    def __init__(self, margin: float = 0.0, *, reduction: str = "mean"):
        self._set(reduction, margin=margin)


class CosineSimilarity(Module):
    """Cosine of the angle between vectors along `dim`."""

    def __init__(self, dim: int = 1, eps: float = 1e-8):
        self.dim, self.eps = dim, eps

    def forward(self, x1: Tensor | Array, x2: Tensor | Array) -> Tensor:
        """The cosines, without the axis `dim`."""
        return functional.cosine_similarity(x1, x2, self.dim, self.eps)

    def extra_repr(self) -> str:
        """What stands in the parentheses of the module's repr."""
        return f"dim={self.dim}, eps={self.eps}"
