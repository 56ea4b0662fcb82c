"""Tensors over the memory of other libraries' arrays (DLPack)."""

from __future__ import annotations

from typing import Any

from psframework import backend
from psframework.autograd.tensor import Tensor


def from_dlpack(source: Any, requires_grad: bool = False, *, copy: bool | None = None) -> Tensor:
    """A tensor over the memory of another library's array (torch, JAX, CuPy, NumPy), on its device.

    The source stays alive as long as the tensor, and both see each other's changes. Read-only memory (as all
    of JAX's) is copied, since a tensor may be changed; torch loses that mark: do not wrap
    `torch.from_dlpack(readonly)`.

    Args:
        source: has `__dlpack__` and `__dlpack_device__`. Of torch's tensors pass `.detach()`.
        requires_grad: whether `backward` gives the tensor a gradient.
        copy: True to copy always; False to refuse where memory cannot be shared.

    Raises:
        ArgumentError: no such array, a dtype or device that psframework doesn't have, or `copy=False` and
            the memory is read-only.
    """
    array = source._data if isinstance(source, Tensor) else source
    return Tensor(backend.from_dlpack(array, copy=copy), requires_grad)
