"""Adam (Kingma and Ba, arXiv:1412.6980) and AdamW (Loshchilov and Hutter, arXiv:1711.05101)."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from psframework.backend import Array
from psframework.optim.blocks import Scratch
from psframework.optim.optimizer import Optimizer, Params
from psframework.optim.rule import Scalars, State, UpdateRule, average, penalised
from psframework.optim.schedule import Rate

_MEAN, _SQUARE, _MAX = "exp_avg", "exp_avg_sq", "max_exp_avg_sq"


@dataclasses.dataclass(frozen=True)
class AdamRule(UpdateRule):
    """Adam's arithmetic. Slots: `exp_avg`, `exp_avg_sq`, with amsgrad `max_exp_avg_sq`.

    With a sparse gradient it is lazy, as torch's SparseAdam: averages of a row without gradient stay as they
    are, instead of decaying; the bias correction counts all steps.
    """

    name = "adam"
    lr: Rate = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0
    amsgrad: bool = False

    def check(self) -> None:
        """Raises ArgumentError if a hyper-parameter is out of range."""
        self._require(len(self.betas) == 2 and all(0 <= b < 1 for b in self.betas), "betas", "two in [0, 1)")
        self._require(self.eps >= 0, "eps", "at least 0")
        self._require(self.weight_decay >= 0, "weight_decay", "at least 0")

    def slots(self) -> Mapping[str, float]:
        """Slot names and the value that each begins with."""
        return dict.fromkeys((_MEAN, _SQUARE, _MAX) if self.amsgrad else (_MEAN, _SQUARE), 0.0)

    def sparse_obstacle(self) -> str:
        """Weight decay changes every row; the averages may wait until the row has a gradient again."""
        return "weight_decay changes every row in each step" if self.weight_decay else ""

    def coefficients(self, step: int) -> tuple[float, ...]:
        """Step size and eps; beta1, 1 - beta1, beta2, 1 - beta2; what the weight decay multiplies by.

        With r = sqrt(1 - beta2^t): lr/(1 - beta1^t) * m / (sqrt(v)/r + eps) is the same as
        lr*r/(1 - beta1^t) * m / (sqrt(v) + eps*r), which is one pass less.
        """
        beta1, beta2 = self.betas
        rate, root = self.rate(step), math.sqrt(1 - beta2**step)
        size, eps = rate * root / (1 - beta1**step), self.eps * root
        return size, eps, beta1, 1 - beta1, beta2, 1 - beta2, self.weight_decay

    def update_block(self, p: Array, g: Array, state: State, c: Scalars, scratch: Scratch) -> None:
        """Updates one block in place."""
        size, eps, beta1, share1, beta2, share2, decay = c
        xp = scratch.xp
        mean, square, t = state[_MEAN], state[_SQUARE], scratch.like(p, 0)
        if self.weight_decay:
            g = self._decayed(p, g, decay, scratch)
        average(mean, g, beta1, share1, scratch)
        average(square, xp.multiply(g, g, out=t), beta2, share2, scratch)
        if self.amsgrad:
            square = xp.maximum(state[_MAX], square, out=state[_MAX])
        xp.sqrt(square, out=t)
        xp.add(t, eps, out=t)
        xp.divide(mean, t, out=t)
        xp.multiply(t, size, out=t)
        xp.subtract(p, t, out=p)

    def _decayed(self, p: Array, g: Array, decay: Any, scratch: Scratch) -> Array:
        """Weight decay as an L2 penalty: in the gradient."""
        return penalised(p, g, decay, scratch)


@dataclasses.dataclass(frozen=True)
class AdamWRule(AdamRule):
    """Adam with decoupled weight decay: the parameter shrinks by lr * weight_decay, whatever the gradient."""

    name = "adamw"
    weight_decay: float = 1e-2

    def coefficients(self, step: int) -> tuple[float, ...]:
        """As Adam's, but the last is the factor by which the parameter shrinks."""
        return *super().coefficients(step)[:-1], 1.0 - self.rate(step) * self.weight_decay

    def _decayed(self, p: Array, g: Array, decay: Any, scratch: Scratch) -> Array:
        """Weight decay apart from the gradient."""
        scratch.xp.multiply(p, decay, out=p)
        return g


class Adam(Optimizer):
    """Adam over parameters, or (without parameters) a description; arguments as torch.optim.Adam."""

    def __init__(
        self,
        params: Params | None = None,
        lr: Rate = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        *,
        maximize: bool = False,
    ):
        super().__init__(params, AdamRule(lr, betas, eps, weight_decay, amsgrad, maximize=maximize))


class AdamW(Optimizer):
    """AdamW over parameters, or (without parameters) a description; arguments as torch.optim.AdamW."""

    def __init__(
        self,
        params: Params | None = None,
        lr: Rate = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        amsgrad: bool = False,
        *,
        maximize: bool = False,
    ):
        super().__init__(params, AdamWRule(lr, betas, eps, weight_decay, amsgrad, maximize=maximize))
