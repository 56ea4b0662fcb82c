"""Notices a loss that went backward without `ddp.backward`, so that nothing was averaged."""

from __future__ import annotations

import warnings

from psframework.autograd import Tensor, is_grad_enabled

_TEXT = (
    "the parameters changed after a forward of this DistributedDataParallel, "
    "and no `await ddp.backward(loss)` came in between: loss.backward() averages nothing, so the models "
    "of the ranks differ from now on"
)


class Neglect:
    """Warns once if a model is trained past its wrapper: forward, an optimizer's step, forward.

    Args:
        parameter: one that is trained.
    """

    def __init__(self, parameter: Tensor) -> None:
        self._parameter = parameter
        self._seen: tuple[object, int] | None = None  # after the last forward; None: nothing is owed
        self._said = False

    def forward_begins(self) -> None:
        """A forward was called. The warning shows the caller of whoever calls this."""
        if self._seen is None or not is_grad_enabled() or self._said:
            return
        counter, count = self._seen
        version = self._parameter._version
        if version is not counter or version[0] != count:
            self._said = True
            warnings.warn(_TEXT, stacklevel=3)

    def forward_ended(self) -> None:
        """From now on a change of the parameter is one without an average."""
        if is_grad_enabled():
            version = self._parameter._version
            self._seen = version, version[0]

    def backward(self) -> None:
        """`ddp.backward` was called."""
        self._seen = None
