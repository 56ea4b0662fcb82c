"""Moving a module to another device or dtype. Parameters keep their identity, so optimizers keep working."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from psframework import backend
from psframework.autograd import SparseRows, Tensor
from psframework.backend import Array, DType
from psframework.errors import ArgumentError

if TYPE_CHECKING:
    from psframework.nn.module import Module

Convert: TypeAlias = Callable[[Array], Array]


def convert(*targets: Any, device: Any = None, dtype: Any = None) -> Convert:
    """What `Module.to(*targets)` does to one array.

    Args:
        targets: devices, floating dtypes, and tensors or arrays to be like.
        device: the same by keyword.
        dtype: the same by keyword.
    """
    for target in targets:
        if isinstance(target, Tensor) or backend.is_array(target):
            array = target.data if isinstance(target, Tensor) else target
            device, dtype = backend.device_of(array), array.dtype
        elif _is_dtype(target):
            dtype = target
        elif isinstance(target, str | backend.Device):
            device = target
        elif target is not None:
            raise ArgumentError(f'Module.to takes a device ("cuda:0") or a floating dtype, not {target!r}')
    place = None if device is None else backend.device(device)
    kind = None if dtype is None else _floating(dtype)

    def moved(array: Array) -> Array:
        if kind is not None and backend.is_floating(array.dtype) and array.dtype != kind:
            array = array.astype(kind)
        return array if place is None else backend.to_device(array, place)

    return moved


def move(module: Module, converted: Convert) -> None:
    """Replaces the arrays of parameters, gradients and buffers; what was shared stays shared."""
    for name, parameter in module.named_parameters():
        if parameter.grad_buffer is not None:
            raise ArgumentError(
                f"{name} cannot be moved: its gradient accumulates in a buffer of whoever wrapped the model; "
                "move the model before it is wrapped"
            )
    parameters = list(module.parameters())
    buffers = [(owner, name) for _, owner, name, is_buffer in module._places("") if is_buffer]
    # All are converted before any is replaced: a device without room leaves the module as it was.
    arrays: list[Any] = [parameter.data for parameter in parameters]
    arrays += [parameter.grad for parameter in parameters if parameter.grad is not None]
    arrays += [owner.__dict__[name] for owner, name in buffers]
    done = {id(array): array for array in arrays}
    done = {
        key: _rows(array, converted) if isinstance(array, SparseRows) else converted(array)
        for key, array in done.items()
    }
    for parameter in parameters:
        gradient = parameter.grad
        parameter.data = done[id(parameter.data)]
        parameter.grad = None if gradient is None else done[id(gradient)]
    for owner, name in buffers:
        owner.__dict__[name] = done[id(owner.__dict__[name])]


def _rows(gradient: SparseRows, converted: Convert) -> SparseRows:
    return SparseRows(
        converted(gradient.rows), converted(gradient.values), gradient.shape, gradient.coalesced
    )


def _is_dtype(target: Any) -> bool:
    if isinstance(target, str):
        try:
            backend.dtype_from_name(target)
        except ArgumentError:
            return False
    return isinstance(target, str | np.dtype | type)


def _floating(dtype: Any) -> DType:
    kind = backend.dtype_from_name(dtype) if isinstance(dtype, str) else np.dtype(dtype)
    if not backend.is_floating(kind):
        raise ArgumentError(
            f"Module.to takes a floating dtype, not {kind}: parameters of integers cannot be trained"
        )
    return kind
