"""Where a tensor's array is: what a Tensor says about it, and how it goes elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from psframework import backend
from psframework.autograd.traced import Traced
from psframework.backend import Device, Stream
from psframework.errors import AutogradError

if TYPE_CHECKING:
    from psframework.autograd.tensor import Tensor


class Placed(Traced):
    """A traced array that can move between devices, and be lent to other libraries."""

    __slots__ = ()

    @property
    def device(self) -> Device:
        """The device that the array is on."""
        return backend.device_of(self._data)

    def to(
        self, target: Any, dtype: Any = None, *, copy: bool = False, stream: Stream | None = None
    ) -> Tensor:
        """On another device, in another dtype, or as another tensor; itself if nothing changes.

        Args:
            target: `psf.device(...)` or its name, a dtype or its name, or a tensor to be like.
            dtype: if `target` is a device, the dtype as well.
            copy: copy also if nothing changes.
            stream: of the GPU's side of the copy.

        Raises:
            ArgumentError: no such device or dtype.
        """
        from psframework.autograd.ops import transfer  # it needs the class that is made of this one

        return transfer.to(self, target, dtype, copy=copy, stream=stream)  # type: ignore[arg-type]

    def cpu(self) -> Tensor:
        """In host memory."""
        return self.to(backend.CPU)

    def cuda(self, index: int | None = None) -> Tensor:
        """On a GPU: CuPy's current one, or that of an index."""
        return self.to("cuda" if index is None else f"cuda:{index}")

    def __dlpack__(self, **options: Any) -> Any:
        """The memory as a DLPack capsule, so that `torch.from_dlpack(tensor)` shares it."""
        if self._requires_grad:
            raise AutogradError("another library would not record its changes: lend tensor.detach()")
        if self._data.dtype == backend.bfloat16 and self.device == backend.CPU:
            raise BufferError(
                "NumPy can't lend bfloat16 by DLPack: lend tensor.data.view(np.uint16), "
                "and view it as bfloat16 on the other side"
            )
        return self._data.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        """Kind and number of the device, in DLPack's terms."""
        return self._data.__dlpack_device__()
