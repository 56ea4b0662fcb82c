"""By what gradients are multiplied before an update: the scale of a float16 loss, and clipping. No I/O."""

from __future__ import annotations

import math
from typing import Final

from psframework.optim.clip import clip_coefficient

FIRST: Final = 2.0**16
GROWTH: Final = 2.0
BACKOFF: Final = 0.5
INTERVAL: Final = 2000
"""`optim.GradScaler`'s defaults, which are torch's."""


class Scaling:
    """The scale of the loss in each step, and what becomes of the gradients.

    A step that is replayed finds the scale that it had.

    Args:
        scaled: whether the loss is scaled; then a step whose gradients are not finite is skipped.
        max_norm: most that the norm of all gradients may be; None: any.
        interval: finite steps after which the scale grows.

    Attributes:
        needed: whether an update has to wait for the gradients of all stages.
    """

    def __init__(self, scaled: bool, max_norm: float | None, interval: int = INTERVAL) -> None:
        self.needed = scaled or max_norm is not None
        self._scaled, self._max_norm, self._interval = scaled, max_norm, interval
        self._scales: dict[int, tuple[float, int]] = {0: (FIRST, 0)}

    def scale(self, step: int) -> float:
        """What the loss of a step is multiplied by."""
        return self._scales[step][0] if self._scaled else 1.0

    def coefficient(self, step: int, power: float) -> float | None:
        """What the gradients of a step are to be multiplied by; None: the step is to be skipped.

        Args:
            step: that comes to its end with this; or once more, if it is replayed.
            power: sum of squares of all gradients, as they are.
        """
        scale = self.scale(step)
        if self._scaled:
            finite = math.isfinite(power)
            self._scales[step + 1] = self._next(*self._scales[step], finite)
            if not finite:
                return None
        if self._max_norm is None:
            return 1 / scale
        return clip_coefficient(math.sqrt(power) / scale, self._max_norm) / scale

    def forget(self, commit: int) -> None:
        """Steps before a commit are not replayed any more."""
        for step in [step for step in self._scales if step < commit]:
            del self._scales[step]

    def _next(self, scale: float, finite_steps: int, finite: bool) -> tuple[float, int]:
        if not finite:
            return scale * BACKOFF, 0
        if finite_steps + 1 < self._interval:
            return scale, finite_steps + 1
        return scale * GROWTH, 0
