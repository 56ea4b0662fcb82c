"""Bucket: what a communication hook gets, gradients of several parameters in one flat array. No I/O."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from psframework.autograd.tensor import Tensor
from psframework.backend import Array
from psframework.collective.ops import ReduceOp


class Ranks(Protocol):
    """As much of a `psf.ProcessGroup` as hooks use."""

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    def all_reduce(self, array: Any, op: ReduceOp = ..., /) -> Awaitable[Any]: ...

    def all_gather(self, array: Any, /) -> Awaitable[Any]: ...


@dataclass(slots=True, eq=False)
class Bucket:
    """The gradients of some parameters, as one rank computed them in one backward.

    Attributes:
        index: of the bucket; in each backward all ranks handle 0, 1, 2, ... in this order.
        buffer: all gradients, as one array with one axis. Between two gradients there may be elements of no
            parameter, which are 0 and stay so.
        parameters: whose gradients they are.
        names: their dotted names in the model.
        starts: where in `buffer` the gradient of each begins.
        group: the ranks.
    """

    index: int
    buffer: Array
    parameters: Sequence[Tensor]
    names: Sequence[str]
    starts: Sequence[int]
    group: Ranks

    def views(self) -> list[Array]:
        """The gradient of each parameter, in its shape: views of `buffer`."""
        return [
            self.buffer[start : start + parameter.size].reshape(parameter.shape)
            for start, parameter in zip(self.starts, self.parameters)
        ]
