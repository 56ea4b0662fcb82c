"""Stochastic gradient descent, with momentum and Nesterov's variant (torch.optim.SGD)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from psframework.backend import Array
from psframework.optim.blocks import Scratch
from psframework.optim.optimizer import Optimizer, Params
from psframework.optim.rule import UpdateRule, penalised
from psframework.optim.schedule import Rate

_BUFFER = "momentum_buffer"


@dataclasses.dataclass(frozen=True)
class SGDRule(UpdateRule):
    """SGD's arithmetic. Slot (with momentum): `momentum_buffer`."""

    name = "sgd"
    lr: Rate = 1e-3
    momentum: float = 0.0
    dampening: float = 0.0
    weight_decay: float = 0.0
    nesterov: bool = False

    def check(self) -> None:
        """Raises ArgumentError if a hyper-parameter is out of range."""
        self._require(self.momentum >= 0, "momentum", "at least 0")
        self._require(self.weight_decay >= 0, "weight_decay", "at least 0")
        plain = self.momentum > 0 and self.dampening == 0
        self._require(plain or not self.nesterov, "nesterov", "False without momentum or with dampening")

    def slots(self) -> Mapping[str, float]:
        """Slot names and the value that each begins with."""
        return {_BUFFER: 0.0} if self.momentum else {}

    def coefficients(self, step: int) -> tuple[float, ...]:
        """Rate, and the share of the gradient that enters the momentum: all of it at the first step."""
        return self.rate(step), 1.0 if step == 1 else 1.0 - self.dampening

    def update_block(
        self, p: Array, g: Array, state: Mapping[str, Array], c: tuple[float, ...], scratch: Scratch
    ) -> None:
        """Updates one block in place."""
        rate, share = c
        xp = scratch.xp
        temporary = scratch.like(p, 0)
        g = penalised(p, g, self.weight_decay, scratch)
        if self.momentum:
            g = self._with_momentum(g, state[_BUFFER], share, scratch)
        xp.multiply(g, rate, out=temporary)
        xp.subtract(p, temporary, out=p)

    def _with_momentum(self, g: Array, buffer: Array, share: float, scratch: Scratch) -> Array:
        xp, temporary = scratch.xp, scratch.like(g, 0)
        xp.multiply(buffer, self.momentum, out=buffer)
        if share == 1.0:
            xp.add(buffer, g, out=buffer)
        else:
            xp.multiply(g, share, out=temporary)
            xp.add(buffer, temporary, out=buffer)
        if not self.nesterov:
            return buffer
        xp.multiply(buffer, self.momentum, out=temporary)
        xp.add(temporary, g, out=temporary)
        return temporary


class SGD(Optimizer):
    """SGD over parameters, or (without parameters) a description; arguments as torch.optim.SGD."""

    def __init__(
        self,
        params: Params | None = None,
        lr: Rate = 1e-3,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
    ):
        super().__init__(params, SGDRule(lr, momentum, dampening, weight_decay, nesterov))
