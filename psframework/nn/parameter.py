"""Parameter: a Tensor that a Module trains."""

from __future__ import annotations

from typing import Any

from psframework.autograd import Tensor
from psframework.backend import Array


class Parameter(Tensor):
    """A leaf Tensor that becomes part of a Module when it is assigned to an attribute of one.

    Args:
        data: floating-point array, or a Tensor whose array is taken; shared, not copied.
        requires_grad: False for a parameter that is saved and loaded but not trained.
    """

    def __init__(self, data: Array | Tensor, requires_grad: bool = True):
        super().__init__(data.data if isinstance(data, Tensor) else data, requires_grad)

    def __repr__(self) -> str:
        return f"Parameter containing:\n{super().__repr__()}"

    def __deepcopy__(self, memo: dict[int, Any]) -> Parameter:
        """A leaf with its own array; gradient, gradient buffer and hooks stay with this one."""
        twin = type(self)(self._data.copy(), self._requires_grad)
        memo[id(self)] = twin
        return twin

    def __reduce_ex__(self, protocol: object) -> tuple[Any, ...]:
        return type(self), (self._data, self._requires_grad)
