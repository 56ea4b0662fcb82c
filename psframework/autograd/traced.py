"""What a tensor is before it can compute: an array, its gradient, and its place in the graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self, SupportsIndex

import numpy as np

from psframework import backend
from psframework.autograd import accumulate, hooks
from psframework.autograd.grad_mode import is_grad_enabled
from psframework.autograd.node import Node, Version
from psframework.autograd.sparse import SparseRows
from psframework.backend import Array, DType
from psframework.errors import ArgumentError, AutogradError

_ndarray = np.ndarray


class Traced:
    """An array with its place in the graph; `Tensor` adds the operations.

    Args:
        data: the array; it is shared, not copied (`psf.tensor` copies).
        requires_grad: whether `backward` gives this tensor a gradient. Only floating dtypes can.

    Attributes:
        grad_buffer: if set, an array of the same shape into which this leaf's gradient accumulates; `grad` is
            then that array itself. The first gradient after `grad = None` overwrites it, later ones add.
    """

    __slots__ = (
        "__weakref__", "_data", "_grad", "_node", "_requires_grad", "_version", "grad_buffer", "leaf_hooks",
    )  # fmt: skip
    __array_ufunc__ = None  # so that `array + tensor` asks this class

    _data: Array
    _grad: Array | SparseRows | None
    _node: Node | None
    _requires_grad: bool
    _version: Version
    grad_buffer: Array | None
    leaf_hooks: list[Callable[[Array], Any]] | None

    def __init__(self, data: Array, requires_grad: bool = False) -> None:
        if type(data) is not _ndarray and not backend.is_array(data):
            raise ArgumentError(f"Tensor takes an array, not {type(data).__name__}: use psf.tensor(...)")
        self._data = data
        self._node = None
        self._requires_grad = False
        self._version = [0]
        self._grad = None
        self.grad_buffer = None
        self.leaf_hooks = None
        if requires_grad:
            self.requires_grad = True

    @property
    def data(self) -> Array:
        """The array. Assigning another one, or writing into it, is not seen by the graph."""
        return self._data

    @data.setter
    def data(self, array: Array) -> None:
        if type(array) is not _ndarray and not backend.is_array(array):
            raise ArgumentError(f"Tensor.data must be an array, not {type(array).__name__}")
        self._data = array

    @property
    def grad(self) -> Any:
        """The accumulated gradient of a leaf, an array of its shape and dtype; None before the first.

        A SparseRows for a leaf that only sparse gradients came to (`nn.Embedding(..., sparse=True)`).
        """
        return self._grad

    @grad.setter
    def grad(self, array: Array | SparseRows | None) -> None:
        if array is not None:
            if not backend.is_array(array) and not isinstance(array, SparseRows):
                raise ArgumentError(f"Tensor.grad must be an array or None, not {type(array).__name__}")
            if array.shape != self._data.shape:
                raise ArgumentError(f"gradient of shape {array.shape} for a tensor of shape {self.shape}")
            if not backend.is_floating(array.dtype):
                raise ArgumentError(
                    f"gradient of dtype {array.dtype} for a tensor of {self.dtype}: use .astype({self.dtype})"
                )
        self._grad = array

    @property
    def requires_grad(self) -> bool:
        """Whether gradients flow into this tensor."""
        return self._requires_grad

    @requires_grad.setter
    def requires_grad(self, value: bool) -> None:
        if value and not backend.is_floating(self._data.dtype):
            raise AutogradError(
                f"a tensor of dtype {self._data.dtype} cannot require grad: only floating dtypes can; "
                "convert it with .astype(np.float32)"
            )
        if not value and self._node is not None:
            raise AutogradError(
                f"requires_grad of the result of '{self._node.name}' cannot be cleared: use .detach()"
            )
        self._requires_grad = bool(value)

    def requires_grad_(self, value: bool = True) -> Self:
        """Set `requires_grad`, and return this tensor."""
        self.requires_grad = value
        return self

    @property
    def shape(self) -> tuple[int, ...]:
        """Length of each axis."""
        return self._data.shape

    @property
    def dtype(self) -> DType:
        """Type of the elements."""
        return self._data.dtype

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return self._data.ndim

    @property
    def size(self) -> int:
        """Number of elements."""
        return self._data.size

    @property
    def is_leaf(self) -> bool:
        """Whether no recorded operation made it."""
        return self._node is None

    @property
    def node(self) -> Node | None:
        """The recorded operation that made it; None for leaves and constants."""
        return self._node

    @property
    def version(self) -> int:
        """How often Tensor operations changed this memory in place."""
        return self._version[0]

    def bump_version(self) -> None:
        """Note that this memory was changed by other means than Tensor operations.

        A graph that needs the old values then raises in its backward, instead of computing wrong gradients.
        """
        self._version[0] += 1

    def backward(self, seed: Array | Traced | None = None, retain_graph: bool = False) -> None:
        """Add this tensor's gradient with respect to every leaf below it to the leaf's `grad`.

        Args:
            seed: gradient of this tensor, of its shape; 1 by default, for a tensor of one element only.
            retain_graph: keep the graph for another backward.

        Raises:
            AutogradError: nothing here requires grad, the graph was freed by an earlier backward, or an array
                that it needs was changed in place.
        """
        accumulate.backward_into_grad([self], [seed], retain_graph)

    def register_hook(self, hook: Callable[[Array], Array | None]) -> Callable[[], None]:
        """Call `hook(gradient)` in each backward; an array that it returns replaces the gradient.

        It must not change its argument, which may be shared. A leaf's hook sees the sum of one backward,
        before it is added to `grad`.

        Returns:
            A function that removes the hook.
        """
        if not callable(hook):
            raise ArgumentError(f"a hook must be callable, not {type(hook).__name__}")
        if not self._requires_grad:
            raise AutogradError("a hook needs a tensor that requires grad: set requires_grad=True first")
        return hooks.add_hook(self, hook)

    def retain_grad(self) -> None:
        """Keep the gradient in `grad` although this is no leaf. A leaf keeps it anyway."""
        if not self._requires_grad:
            raise AutogradError(
                "retain_grad needs a tensor that requires grad: set requires_grad=True on an input"
            )
        if self._node is not None:
            hooks.retain_grad(self, self._node)

    def numpy(self) -> Array:
        """The array in host memory: shared if it is there already, else a copy."""
        return backend.asnumpy(self._data)

    def item(self) -> Any:
        """The only element, as a Python number.

        Raises:
            ArgumentError: there is not exactly one.
        """
        if self._data.size != 1:
            raise ArgumentError(
                f"a tensor of shape {self.shape} is no single number: index or reduce it first"
            )
        return self._data.item()

    def tolist(self) -> Any:
        """The elements, as nested lists of Python numbers."""
        return self._data.tolist()

    def __reduce_ex__(self, protocol: SupportsIndex) -> Any:
        if self._node is not None:
            raise AutogradError(
                f"the result of '{self._node.name}' can't be copied with its graph: copy .detach(), or use "
                ".clone(), through which gradients pass"
            )
        return super().__reduce_ex__(protocol)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        if self._requires_grad and is_grad_enabled():
            raise AutogradError(
                "this tensor requires grad, and would become an array without a graph: use .detach() or "
                ".numpy() if no gradient is wanted, psf.ops.stack to join tensors"
            )
        return np.array(self.numpy(), dtype=dtype, copy=copy)

    def __float__(self) -> float:
        return float(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __index__(self) -> int:
        return self._data.__index__()

    def __bool__(self) -> bool:
        return bool(self.item())

    def __len__(self) -> int:
        return len(self._data)

    def __format__(self, spec: str) -> str:
        # So that f"{loss:.4f}" prints a number.
        if spec and not self._data.ndim:
            return format(self._data.item(), spec)
        try:
            return format(repr(self), spec)
        except ValueError as error:
            raise ArgumentError(
                f"a tensor of shape {self.shape} takes no format {spec!r}: format its elements, one by one"
            ) from error

    def __repr__(self) -> str:
        text = repr(self._data).replace("array(", "tensor(", 1)
        if type(self._data) is not _ndarray:
            text = f"{text[:-1]}, device={backend.device_of(self._data)})"
        if self._node is not None:
            return f"{text[:-1]}, node={self._node.name})"
        return f"{text[:-1]}, requires_grad=True)" if self._requires_grad else text
