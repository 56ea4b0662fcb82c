"""RMSprop (Hinton's lecture 6e, 2012), plain, centered (Graves, arXiv:1308.0850) and with momentum."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from psframework.backend import Array
from psframework.optim.blocks import Scratch
from psframework.optim.optimizer import Optimizer, Params
from psframework.optim.rule import Scalars, State, UpdateRule, average, penalised
from psframework.optim.schedule import Rate

_SQUARE, _MEAN, _BUFFER = "square_avg", "grad_avg", "momentum_buffer"


@dataclasses.dataclass(frozen=True)
class RMSpropRule(UpdateRule):
    """RMSprop's arithmetic. Slots: `square_avg`, centered `grad_avg`, with momentum `momentum_buffer`."""

    name = "rmsprop"
    lr: Rate = 1e-2
    alpha: float = 0.99
    eps: float = 1e-8
    weight_decay: float = 0.0
    momentum: float = 0.0
    centered: bool = False

    def check(self) -> None:
        """Raises ArgumentError if a hyper-parameter is out of range."""
        self._require(0 <= self.alpha <= 1, "alpha", "in [0, 1]")
        for field in ("eps", "weight_decay", "momentum"):
            self._require(getattr(self, field) >= 0, field, "at least 0")

    def slots(self) -> Mapping[str, float]:
        """Slot names and the value that each begins with."""
        wanted = {_SQUARE: True, _MEAN: self.centered, _BUFFER: self.momentum > 0}
        return {name: 0.0 for name, used in wanted.items() if used}

    def coefficients(self, step: int) -> tuple[float, ...]:
        """Rate, alpha and 1 - alpha, eps, momentum, weight decay."""
        return self.rate(step), self.alpha, 1 - self.alpha, self.eps, self.momentum, self.weight_decay

    def update_block(self, p: Array, g: Array, state: State, c: Scalars, scratch: Scratch) -> None:
        """Updates one block in place."""
        rate, alpha, share, eps, momentum, decay = c
        xp = scratch.xp
        square, t = state[_SQUARE], scratch.like(p, 0)
        if self.weight_decay:
            g = penalised(p, g, decay, scratch)
        average(square, xp.multiply(g, g, out=t), alpha, share, scratch)
        if self.centered:
            average(state[_MEAN], g, alpha, share, scratch)
            square = self._variance(square, state[_MEAN], scratch)
        xp.sqrt(square, out=t)
        xp.add(t, eps, out=t)
        xp.divide(g, t, out=t)
        if self.momentum:
            buffer = state[_BUFFER]
            xp.multiply(buffer, momentum, out=buffer)
            xp.add(buffer, t, out=buffer)
            xp.multiply(buffer, rate, out=t)
        else:
            xp.multiply(t, rate, out=t)
        xp.subtract(p, t, out=p)

    def _variance(self, square: Array, mean: Array, scratch: Scratch) -> Array:
        xp, t = scratch.xp, scratch.like(mean, 0)
        xp.multiply(mean, mean, out=t)
        xp.subtract(square, t, out=t)
        # For a constant gradient the difference is zero but for rounding, and a root of -1e-10 is NaN.
        xp.maximum(t, 0, out=t)
        return t


class RMSprop(Optimizer):
    """RMSprop over parameters, or (without parameters) a description; arguments as torch.optim.RMSprop."""

    def __init__(
        self,
        params: Params | None = None,
        lr: Rate = 1e-2,
        alpha: float = 0.99,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        momentum: float = 0.0,
        centered: bool = False,
        *,
        maximize: bool = False,
    ):
        super().__init__(
            params, RMSpropRule(lr, alpha, eps, weight_decay, momentum, centered, maximize=maximize)
        )
