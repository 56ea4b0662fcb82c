"""Operations of one's own: a forward, and a backward that belongs to it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from psframework import backend
from psframework.autograd.record import constant, record, recording
from psframework.autograd.tensor import Tensor
from psframework.backend import Array
from psframework.errors import AutogradError


class Context:
    """What a forward leaves for its backward; other attributes may be set at will.

    Attributes:
        needs_input_grad: for each argument of the forward, whether its gradient is wanted.
        saved: the arrays given to `save_for_backward`.
    """

    def __init__(self, needs_input_grad: tuple[bool, ...]) -> None:
        self.needs_input_grad = needs_input_grad
        self.saved: tuple[Array, ...] = ()

    def save_for_backward(self, *arrays: Array) -> None:
        """Keep arrays for the backward; changing one in place before then, through its tensor, raises."""
        self.saved = arrays


class Function:
    """Base of operations of one's own. Both methods see arrays, never tensors.

    class Cube(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x**3

        @staticmethod
        def backward(ctx, gradient):
            (x,) = ctx.saved
            return 3 * x**2 * gradient

    y = Cube.apply(x)
    """

    @staticmethod
    def forward(ctx: Context, *args: Any) -> Array:
        """The result, an array, for arguments in which every tensor is replaced by its array."""
        raise NotImplementedError

    @staticmethod
    def backward(ctx: Context, gradient: Array) -> Array | Sequence[Array | None] | None:
        """A gradient (or None) for each argument of the forward; without a tuple if there is only one."""
        raise NotImplementedError

    @classmethod
    def apply(cls, *args: Any) -> Tensor:
        """Run the forward, and record it.

        Raises:
            AutogradError: in the backward, if that answers another number of gradients, or another shape.
        """
        needs = tuple(isinstance(arg, Tensor) and arg._requires_grad for arg in args)
        ctx = Context(needs)
        out: Any = cls.forward(ctx, *[arg._data if isinstance(arg, Tensor) else arg for arg in args])
        if isinstance(out, Tensor):
            raise AutogradError(f"{cls.__name__}.forward returned a Tensor: it gets and returns arrays")
        out = backend.as_array(out)
        if not recording(*args):
            return constant(out)
        kept = {id(array) for array in ctx.saved}
        saved = tuple(arg for arg in args if isinstance(arg, Tensor) and id(arg._data) in kept)
        likes = tuple((arg.shape, arg.dtype) if need else None for arg, need in zip(args, needs))

        def rule(gradient: Array) -> Sequence[Array | None]:
            answer = cls.backward(ctx, gradient)
            return _checked(cls.__name__, answer, likes)

        return record(cls.__name__, out, rule, args, saved, id(out) in kept)


def _checked(name: str, answer: Any, likes: tuple[Any, ...]) -> list[Array | None]:
    given = list(answer) if isinstance(answer, tuple | list) else [answer]
    if len(given) != len(likes):
        raise AutogradError(f"{name}.backward returned {len(given)} gradients for {len(likes)} arguments")
    result: list[Array | None] = []
    for position, (gradient, like) in enumerate(zip(given, likes)):
        if gradient is None or like is None:
            result.append(None)
            continue
        shape, dtype = like
        array = backend.as_array(getattr(gradient, "_data", gradient))
        if array.shape != shape:
            raise AutogradError(
                f"{name}.backward returned shape {array.shape} for argument {position} of shape {shape}"
            )
        result.append(array if array.dtype == dtype else array.astype(dtype))
    return result
