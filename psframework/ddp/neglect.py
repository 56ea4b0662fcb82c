"""Notices a loss that went backward without `ddp.backward`, so that nothing was averaged."""

from __future__ import annotations

import warnings
from collections.abc import Iterable

from psframework.autograd import Tensor, is_grad_enabled
from psframework.autograd.node import Version
from psframework.backend import Array, xp

_TEXT = (
    "the parameters changed after a forward of this DistributedDataParallel, "
    "and no `await ddp.backward(loss)` came in between: loss.backward() averages nothing, so the models "
    "of the ranks differ from now on"
)


class Neglect:
    """Warns once if a model is trained past its wrapper: forward, loss.backward(), a step, forward.

    It looks at the smallest parameter only: whether it has changed, and its gradient too. (It may also change
    by `load_state_dict`, after a forward for the sake of its result.)

    Args:
        parameters: those that are trained. One that has no `grad_buffer` is not looked at.
    """

    def __init__(self, parameters: Iterable[Tensor]) -> None:
        dense = [each for each in parameters if each.grad_buffer is not None and each.size]
        self._parameter = min(dense, key=lambda each: each.size, default=None)
        self._seen: tuple[Version, int, Array] | None = None  # after the last forward; None: nothing is owed
        self._said = False

    def forward_begins(self) -> None:
        """A forward was called. The warning shows the caller of whoever calls this."""
        if self._parameter is None or self._seen is None or not is_grad_enabled() or self._said:
            return
        (counter, count, before), version = self._seen, self._parameter._version
        if version is counter and version[0] == count:
            return
        gradient = self._parameter.grad_buffer
        if gradient is not None and not xp(gradient).array_equal(gradient, before):
            self._said = True
            warnings.warn(_TEXT, stacklevel=3)

    def forward_ended(self) -> None:
        """From now on a change of the parameter is one without an average."""
        if self._parameter is not None and is_grad_enabled() and self._parameter.grad_buffer is not None:
            version = self._parameter._version
            self._seen = version, version[0], self._parameter.grad_buffer.copy()

    def backward(self) -> None:
        """`ddp.backward` was called."""
        self._seen = None
