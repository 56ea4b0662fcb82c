"""Operations of one's own: a forward, and a backward that belongs to it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from psframework import backend
from psframework.autograd.engine import Gradient
from psframework.autograd.record import constant, record, record_many, recording
from psframework.autograd.sparse import SparseRows
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

    A forward may return a tuple of arrays; the backward then gets as many gradients.

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
    def forward(ctx: Context, *args: Any) -> Array | tuple[Array, ...]:
        """The result, an array or a tuple of arrays, for arguments whose tensors are replaced by arrays."""
        raise NotImplementedError

    @staticmethod
    def backward(ctx: Context, *gradients: Any) -> Array | SparseRows | Sequence[Any] | None:
        """A gradient (or None) for each argument of the forward; without a tuple if there is only one.

        It gets a gradient for each result of the forward; None for one of several that nothing depends on.
        """
        raise NotImplementedError

    @classmethod
    def apply(cls, *args: Any) -> Any:
        """Run the forward, and record it.

        Returns:
            A Tensor, or a tuple of them if the forward returned one.

        Raises:
            AutogradError: in the backward, if that answers another number of gradients, or another shape.
        """
        needs = tuple(isinstance(arg, Tensor) and arg._requires_grad for arg in args)
        ctx = Context(needs)
        answer: Any = cls.forward(ctx, *[arg._data if isinstance(arg, Tensor) else arg for arg in args])
        several = isinstance(answer, tuple | list)
        given = answer if several else [answer]
        if any(isinstance(out, Tensor) for out in given):
            raise AutogradError(f"{cls.__name__}.forward returned a Tensor: it gets and returns arrays")
        outs = [backend.as_array(out) for out in given]
        if not recording(*args):
            results = tuple(constant(out) for out in outs)
            return results if several else results[0]
        kept = {id(array) for array in ctx.saved}
        saved = tuple(arg for arg in args if isinstance(arg, Tensor) and id(arg._data) in kept)
        saves_output = any(id(out) in kept for out in outs)
        likes = tuple((arg.shape, arg.dtype) if need else None for arg, need in zip(args, needs))

        def rule(gradients: tuple[Array | None, ...]) -> Sequence[Gradient | None]:
            return _checked(cls.__name__, cls.backward(ctx, *gradients), likes)

        if several:
            return record_many(cls.__name__, outs, rule, args, saved, saves_output)
        return record(cls.__name__, outs[0], lambda gradient: rule((gradient,)), args, saved, saves_output)


def _checked(name: str, answer: Any, likes: tuple[Any, ...]) -> list[Gradient | None]:
    given = list(answer) if isinstance(answer, tuple | list) else [answer]
    if len(given) != len(likes):
        raise AutogradError(f"{name}.backward returned {len(given)} gradients for {len(likes)} arguments")
    result: list[Gradient | None] = []
    for position, (gradient, like) in enumerate(zip(given, likes)):
        if gradient is None or like is None:
            result.append(None)
            continue
        shape, dtype = like
        array = getattr(gradient, "_data", gradient)
        if not isinstance(array, SparseRows):
            array = backend.as_array(array)
        if array.shape != shape:
            raise AutogradError(
                f"{name}.backward returned shape {array.shape} for argument {position} of shape {shape}"
            )
        result.append(array if array.dtype == dtype else array.astype(dtype))
    return result
