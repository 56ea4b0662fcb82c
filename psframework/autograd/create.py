"""Tensors made of arrays and numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

from psframework import backend
from psframework.autograd.tensor import Tensor
from psframework.backend import Device
from psframework.errors import ArgumentError


def tensor(
    data: Any, requires_grad: bool = False, *, dtype: Any = None, device: str | Device | None = None
) -> Tensor:
    """A tensor over a copy of `data`.

    Args:
        data: an array, a Tensor, a number, or nested lists of numbers. The dtype is kept.
        requires_grad: whether `backward` gives it a gradient.
        dtype: convert to this dtype.
        device: where to; by default arrays of a GPU stay there, and all else goes to the current device
            (`with psf.device(...):`).

    Raises:
        ArgumentError: something that no array of numbers can be made of, or no such device.
        AutogradError: `requires_grad` for a dtype that is not floating.
    """
    source = data._data if isinstance(data, Tensor) else data
    try:
        wanted = None if dtype is None else np.dtype(dtype)
    except TypeError as error:
        raise ArgumentError(f"tensor: {error}") from error
    if backend.is_array(source):
        kind = source.dtype if wanted is None else wanted
        array = source.astype(kind.newbyteorder("=") if kind.byteorder == ">" else kind, copy=True, order="C")
    else:
        try:
            array = np.array(source, dtype=wanted)
        except (TypeError, ValueError) as error:
            raise ArgumentError(f"no tensor can be made of {type(data).__name__}: {error}") from error
    backend.dtype_name(array.dtype)
    if device is None and type(array) is np.ndarray:
        device = backend.current_device()
    if device is not None:
        array = backend.to_device(array, device)
    return Tensor(array, requires_grad)
