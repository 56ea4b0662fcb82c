"""The one seam between NumPy and CuPy: everything else asks `xp(array)` for the module to compute with."""

from psframework.backend.arrays import (
    Array,
    as_array,
    cupy,
    forget_namespace,
    is_array,
    register_namespace,
    widen,
    xp,
)
from psframework.backend.blas import add_product
from psframework.backend.cuda import CudaPlatform
from psframework.backend.devices import CPU, Device, current_device, device, device_of
from psframework.backend.dlpack import from_dlpack
from psframework.backend.dtypes import (
    DType,
    bfloat16,
    dtype_from_name,
    dtype_name,
    is_floating,
    is_narrow,
)
from psframework.backend.ipc import SharedMemory, open_shared
from psframework.backend.platforms import Platform, forget_platform, fused, register_platform
from psframework.backend.scopes import follow
from psframework.backend.special import erf
from psframework.backend.streams import Event, Stream
from psframework.backend.transfer import array_like, asnumpy, pinned_empty, stream, to_device

register_platform(CudaPlatform())

__all__ = [
    "CPU",
    "Array",
    "DType",
    "Device",
    "Event",
    "Platform",
    "SharedMemory",
    "Stream",
    "add_product",
    "array_like",
    "as_array",
    "asnumpy",
    "bfloat16",
    "cupy",
    "current_device",
    "device",
    "device_of",
    "dtype_from_name",
    "dtype_name",
    "erf",
    "follow",
    "forget_namespace",
    "forget_platform",
    "from_dlpack",
    "fused",
    "is_array",
    "is_floating",
    "is_narrow",
    "open_shared",
    "pinned_empty",
    "register_namespace",
    "register_platform",
    "stream",
    "to_device",
    "widen",
    "xp",
]
