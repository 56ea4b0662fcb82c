"""Operations of one's own: a forward, and a backward that belongs to it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from psframework import backend
from psframework.autograd.engine import Gradient
from psframework.autograd.offers import summing
from psframework.autograd.record import constant, record, record_many, recording, share_memory
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
        """The result, an array or a tuple of arrays, for arguments whose tensors are replaced by arrays.

        It must not change an argument. A result of no floating dtype is a constant.
        """
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
            AutogradError: the forward returned no array; or, in the backward, that answers another number of
                gradients, or another shape.
        """
        needs = tuple(isinstance(arg, Tensor) and arg._requires_grad for arg in args)
        ctx = Context(needs)
        answer: Any = cls.forward(ctx, *[arg._data if isinstance(arg, Tensor) else arg for arg in args])
        several = isinstance(answer, tuple | list)
        outs = [_array(cls.__name__, out) for out in (answer if several else [answer])]
        results = cls._recorded(ctx, outs, args, several)
        for result in results:
            for arg in args:
                if isinstance(arg, Tensor) and _overlap(result._data, arg._data):
                    share_memory(result, arg)
        return results if several else results[0]

    @classmethod
    def _recorded(
        cls, ctx: Context, outs: list[Array], args: tuple[Any, ...], several: bool
    ) -> tuple[Tensor, ...]:
        if not recording(*args) or not any(backend.is_floating(out.dtype) for out in outs):
            return tuple([constant(out) for out in outs])
        kept = [array for array in ctx.saved if backend.is_array(array)]
        saved = [
            arg
            for arg in args
            if isinstance(arg, Tensor) and any(_overlap(arg._data, array) for array in kept)
        ]
        saves_output = any(_overlap(out, array) for out in outs for array in kept)
        likes = tuple(
            [(arg.shape, arg.dtype) if need else None for arg, need in zip(args, ctx.needs_input_grad)]
        )

        def rule(gradients: tuple[Array | None, ...]) -> Sequence[Gradient | None]:
            with summing({}):  # totals are not for a backward that this one runs
                found = cls.backward(ctx, *gradients)
            return _checked(cls.__name__, found, likes)

        if several:
            return record_many(cls.__name__, outs, rule, args, tuple(saved), saves_output)
        alone = record(
            cls.__name__, outs[0], lambda gradient: rule((gradient,)), args, tuple(saved), saves_output
        )
        return (alone,)


def _array(name: str, out: Any) -> Array:
    if isinstance(out, Tensor):
        raise AutogradError(f"{name}.forward returned a Tensor: it gets and returns arrays")
    if not backend.is_array(out) and not isinstance(out, int | float | np.generic):
        raise AutogradError(
            f"{name}.forward returned {type(out).__name__}: return an array, or a tuple of arrays"
        )
    return backend.as_array(out)


def _overlap(one: Array, other: Array) -> bool:
    """Whether a change of one array can change the other."""
    if one is other:
        return True
    owner = one if one.base is None else one.base
    if owner is not (other if other.base is None else other.base):
        return False
    return bool(backend.xp(one).may_share_memory(one, other))


def _checked(name: str, answer: Any, likes: tuple[Any, ...]) -> list[Gradient | None]:
    given = list(answer) if isinstance(answer, tuple | list) else [answer]
    if len(given) != len(likes):
        raise AutogradError(
            f"{name}.backward returned {len(given)} gradients for {len(likes)} arguments: return one "
            "for each argument of the forward, None where there is none"
        )
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
                f"{name}.backward returned shape {array.shape} for argument {position} of shape {shape}: "
                "return a gradient of the argument's shape, summed over the axes that were broadcast"
            )
        result.append(array if array.dtype == dtype else array.astype(dtype))
    return result
