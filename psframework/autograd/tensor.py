"""Tensor: an array that operations record a graph over."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from psframework.autograd import spelling
from psframework.autograd.placed import Placed
from psframework.backend import Array

Number: TypeAlias = int | float | bool
Operand: TypeAlias = "Tensor | Array | Number | np.generic"
Axis: TypeAlias = int | tuple[int, ...] | None


class Tensor(Placed):
    """An array that operations record a graph over, so that gradients can be computed.

    Operators and methods are those of arrays: `x @ w + b`, `x.sum(axis=0)`. Each calls a function of `ops`.

    Args:
        data: the array; it is shared, not copied (`psf.tensor` copies).
        requires_grad: whether `backward` gives this tensor a gradient. Only floating dtypes can.
    """

    __slots__ = ()
    __hash__ = object.__hash__  # by identity, although == is elementwise

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        return _numpy_protocol.call(function, args, kwargs)

    def detach(self) -> Tensor:
        """A constant over the same memory."""
        return _ops.detach(self)

    def __add__(self, other: Operand) -> Tensor:
        return _ops.add(self, other)

    def __radd__(self, other: Operand) -> Tensor:
        return _ops.add(other, self)

    def __sub__(self, other: Operand) -> Tensor:
        return _ops.subtract(self, other)

    def __rsub__(self, other: Operand) -> Tensor:
        return _ops.subtract(other, self)

    def __mul__(self, other: Operand) -> Tensor:
        return _ops.multiply(self, other)

    def __rmul__(self, other: Operand) -> Tensor:
        return _ops.multiply(other, self)

    def __truediv__(self, other: Operand) -> Tensor:
        return _ops.divide(self, other)

    def __rtruediv__(self, other: Operand) -> Tensor:
        return _ops.divide(other, self)

    def __pow__(self, other: Operand) -> Tensor:
        return _ops.power(self, other)

    def __rpow__(self, other: Operand) -> Tensor:
        return _ops.power(other, self)

    def __floordiv__(self, other: Operand) -> Tensor:
        return _ops.floor_divide(self, other)

    def __rfloordiv__(self, other: Operand) -> Tensor:
        return _ops.floor_divide(other, self)

    def __mod__(self, other: Operand) -> Tensor:
        return _ops.remainder(self, other)

    def __rmod__(self, other: Operand) -> Tensor:
        return _ops.remainder(other, self)

    def __iadd__(self, other: Operand) -> Tensor:
        return _inplace.add_(self, other)

    def __isub__(self, other: Operand) -> Tensor:
        return _inplace.subtract_(self, other)

    def __imul__(self, other: Operand) -> Tensor:
        return _inplace.multiply_(self, other)

    def __itruediv__(self, other: Operand) -> Tensor:
        return _inplace.divide_(self, other)

    def __ipow__(self, other: Operand) -> Tensor:
        return _inplace.power_(self, other)

    def __ifloordiv__(self, other: Operand) -> Tensor:
        return _inplace.floor_divide_(self, other)

    def __imod__(self, other: Operand) -> Tensor:
        return _inplace.remainder_(self, other)

    def __matmul__(self, other: Tensor | Array) -> Tensor:
        return _ops.matmul(self, other)

    def __rmatmul__(self, other: Tensor | Array) -> Tensor:
        return _ops.matmul(other, self)

    def __neg__(self) -> Tensor:
        return _ops.negative(self)

    def __pos__(self) -> Tensor:
        return _ops.positive(self)

    def __abs__(self) -> Tensor:
        return _ops.absolute(self)

    def __getitem__(self, key: Any) -> Tensor:
        return _index.index(self, key)

    def __setitem__(self, key: Any, value: Operand) -> None:
        return _inplace.assign(self, key, value)

    def __iter__(self) -> Iterator[Tensor]:
        return (self[i] for i in range(len(self)))

    def __lt__(self, other: Operand) -> Tensor:
        return _ops.less(self, other)

    def __le__(self, other: Operand) -> Tensor:
        return _ops.less_equal(self, other)

    def __gt__(self, other: Operand) -> Tensor:
        return _ops.greater(self, other)

    def __ge__(self, other: Operand) -> Tensor:
        return _ops.greater_equal(self, other)

    def __eq__(self, other: object) -> Tensor:  # type: ignore[override]
        return _compare.eq(self, other)

    def __ne__(self, other: object) -> Tensor:  # type: ignore[override]
        return _compare.ne(self, other)

    def __and__(self, other: Operand) -> Tensor:
        return _ops.bitwise_and(self, other)

    def __or__(self, other: Operand) -> Tensor:
        return _ops.bitwise_or(self, other)

    def __xor__(self, other: Operand) -> Tensor:
        return _ops.bitwise_xor(self, other)

    def __invert__(self) -> Tensor:
        return _ops.invert(self)

    __rand__, __ror__, __rxor__ = __and__, __or__, __xor__

    def exp(self) -> Tensor:
        """e to the power of each element."""
        return _ops.exp(self)

    def log(self) -> Tensor:
        """Natural logarithm."""
        return _ops.log(self)

    def expm1(self) -> Tensor:
        """`exp(x) - 1`, exact for small numbers."""
        return _ops.expm1(self)

    def log1p(self) -> Tensor:
        """`log(1 + x)`, exact for small numbers."""
        return _ops.log1p(self)

    def sin(self) -> Tensor:
        """Sine of radians."""
        return _ops.sin(self)

    def cos(self) -> Tensor:
        """Cosine of radians."""
        return _ops.cos(self)

    def sqrt(self) -> Tensor:
        """Square root."""
        return _ops.sqrt(self)

    def square(self) -> Tensor:
        """Each element times itself."""
        return _ops.square(self)

    def abs(self) -> Tensor:
        """Absolute value."""
        return _ops.absolute(self)

    def clip(self, low: Operand | None = None, high: Operand | None = None) -> Tensor:
        """Limit to [low, high]."""
        return _ops.clip(self, low, high)

    def maximum(self, other: Operand) -> Tensor:
        """The larger of both, elementwise."""
        return _ops.maximum(self, other)

    def minimum(self, other: Operand) -> Tensor:
        """The smaller of both, elementwise."""
        return _ops.minimum(self, other)

    def astype(self, dtype: Any) -> Tensor:
        """Convert to another dtype."""
        return _ops.astype(self, dtype)

    def clone(self) -> Tensor:
        """A copy, through which gradients pass."""
        return _ops.clone(self)

    def sum(self, axis: Axis = None, keepdims: bool = False) -> Tensor:
        """Sum over `axis`."""
        return _ops.sum(self, axis, keepdims)

    def mean(self, axis: Axis = None, keepdims: bool = False) -> Tensor:
        """Mean over `axis`."""
        return _ops.mean(self, axis, keepdims)

    def max(self, axis: Axis = None, keepdims: bool = False) -> Tensor:
        """Largest value over `axis`."""
        return _ops.max(self, axis, keepdims)

    def min(self, axis: Axis = None, keepdims: bool = False) -> Tensor:
        """Smallest value over `axis`."""
        return _ops.min(self, axis, keepdims)

    def var(self, axis: Axis = None, keepdims: bool = False, ddof: int = 0) -> Tensor:
        """Variance over `axis`, divided by `count - ddof`."""
        return _ops.var(self, axis, keepdims, ddof)

    def std(self, axis: Axis = None, keepdims: bool = False, ddof: int = 0) -> Tensor:
        """Standard deviation over `axis`."""
        return _ops.std(self, axis, keepdims, ddof)

    def prod(self, axis: Axis = None, keepdims: bool = False) -> Tensor:
        """Product over `axis`."""
        return _ops.prod(self, axis, keepdims)

    def logsumexp(self, axis: Axis = None, keepdims: bool = False) -> Tensor:
        """log(sum(exp(x))) over `axis`, without overflow."""
        return _ops.logsumexp(self, axis, keepdims)

    def norm(self, ord: float | None = None, axis: Axis = None, keepdims: bool = False) -> Tensor:
        """Length of the vectors along `axis`."""
        return _ops.norm(self, ord, axis, keepdims)

    def all(self, axis: Axis = None, keepdims: bool = False) -> Tensor:
        """Whether all elements over `axis` are true; a constant."""
        return _ops.all(self, axis, keepdims)

    def any(self, axis: Axis = None, keepdims: bool = False) -> Tensor:
        """Whether some element over `axis` is true; a constant."""
        return _ops.any(self, axis, keepdims)

    def argmax(self, axis: int | None = None, keepdims: bool = False) -> Tensor:
        """Index of the first largest value; a constant."""
        return _ops.argmax(self, axis, keepdims)

    def argmin(self, axis: int | None = None, keepdims: bool = False) -> Tensor:
        """Index of the first smallest value; a constant."""
        return _ops.argmin(self, axis, keepdims)

    def cumsum(self, axis: int | None = None) -> Tensor:
        """Running sums along `axis`, or of all elements in a row."""
        return _ops.cumsum(self, axis)

    def cumprod(self, axis: int | None = None) -> Tensor:
        """Running products along `axis`, or of all elements in a row."""
        return _ops.cumprod(self, axis)

    def sort(self, axis: int | None = -1, descending: bool = False) -> Tensor:
        """A sorted copy, unlike the method of arrays."""
        return _ops.sort(self, axis, descending)

    def argsort(self, axis: int | None = -1, descending: bool = False) -> Tensor:
        """The indices that sort along `axis`; a constant."""
        return _ops.argsort(self, axis, descending)

    def topk(self, k: int, axis: int = -1, largest: bool = True, sorted: bool = True) -> TopK:
        """The `k` largest elements along `axis`, and their indices."""
        return _ops.topk(self, k, axis, largest, sorted)

    def reshape(self, *shape: Any) -> Tensor:
        """The same elements in another shape."""
        return _ops.reshape(self, shape[0] if len(shape) == 1 else shape)

    def transpose(self, *axes: Any) -> Tensor:
        """The axes in this order, or reversed."""
        return _ops.transpose(
            self, (axes[0] if len(axes) == 1 and not isinstance(axes[0], int | np.integer) else axes) or None
        )

    permute = transpose

    def swapaxes(self, first: int, second: int) -> Tensor:
        """Two axes exchanged."""
        return _ops.swapaxes(self, first, second)

    def flatten(self, start_axis: int = 0, end_axis: int = -1) -> Tensor:
        """The axes from `start_axis` to `end_axis` made one."""
        return _ops.flatten(self, start_axis, end_axis)

    def squeeze(self, axis: Axis = None) -> Tensor:
        """Without axes of length 1."""
        return _ops.squeeze(self, axis)

    def unsqueeze(self, axis: int) -> Tensor:
        """With a new axis of length 1."""
        return _ops.unsqueeze(self, axis)

    def expand(self, *shape: Any) -> Tensor:
        """Repeat along axes of length 1, without copying."""
        return _ops.expand(
            self, shape[0] if len(shape) == 1 and not isinstance(shape[0], int | np.integer) else shape
        )

    def moveaxis(self, source: int | Sequence[int], destination: int | Sequence[int]) -> Tensor:
        """Axes at other places, the others in order."""
        return _ops.moveaxis(self, source, destination)

    def split(self, indices_or_sections: int | Sequence[int], axis: int = 0) -> tuple[Tensor, ...]:
        """Equal parts along `axis`, or the parts between indices."""
        return _ops.split(self, indices_or_sections, axis)

    def flip(self, axis: Axis = None) -> Tensor:
        """In reverse order along `axis`."""
        return _ops.flip(self, axis)

    def roll(self, shift: int | tuple[int, ...], axis: Axis = None) -> Tensor:
        """Elements moved on along `axis`, those at the end to the front."""
        return _ops.roll(self, shift, axis)

    def repeat(self, repeats: int | Sequence[int], axis: int | None = None) -> Tensor:
        """Each element several times in a row, as NumPy has it."""
        return _ops.repeat(self, repeats, axis)

    def masked_fill(self, mask: Tensor | Array, value: Operand) -> Tensor:
        """`value` where `mask` holds."""
        return _ops.masked_fill(self, mask, value)

    def gather(self, axis: int, index: Tensor | Array) -> Tensor:
        """The elements at the indices along `axis`, as torch has it."""
        return _ops.gather(self, axis, index)

    def relu(self) -> Tensor:
        """`max(x, 0)`."""
        return _ops.relu(self)

    def tanh(self) -> Tensor:
        """Hyperbolic tangent."""
        return _ops.tanh(self)

    def sigmoid(self) -> Tensor:
        """`1 / (1 + exp(-x))`."""
        return _ops.sigmoid(self)

    def softmax(self, axis: int = -1) -> Tensor:
        """exp(x) / sum(exp(x)) along `axis`."""
        return _ops.softmax(self, axis)

    def log_softmax(self, axis: int = -1) -> Tensor:
        """Logarithm of softmax along `axis`."""
        return _ops.log_softmax(self, axis)

    @property
    def T(self) -> Tensor:
        """The axes in reverse order."""
        return _ops.transpose(self)

    if not TYPE_CHECKING:  # a type checker should still know which names there are

        def __getattr__(self, name: str) -> Any:
            raise spelling.missing(name, _ops.__all__)


spelling.explain_keywords(Tensor)

# Last, because the operations need the class.
from psframework.autograd import numpy_protocol as _numpy_protocol  # noqa: E402
from psframework.autograd import ops as _ops  # noqa: E402
from psframework.autograd.ops import compare as _compare  # noqa: E402
from psframework.autograd.ops import index as _index  # noqa: E402
from psframework.autograd.ops import inplace as _inplace  # noqa: E402
from psframework.autograd.ops.order import TopK  # noqa: E402
