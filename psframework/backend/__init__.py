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
from psframework.backend.arrays import (
    _namespaces as _namespaces,
)
from psframework.backend.dtypes import (
    DType,
    bfloat16,
    dtype_from_name,
    dtype_name,
    is_floating,
    is_narrow,
)
from psframework.backend.special import erf
from psframework.backend.transfer import array_like, asnumpy

__all__ = [
    "Array",
    "DType",
    "array_like",
    "as_array",
    "asnumpy",
    "bfloat16",
    "cupy",
    "dtype_from_name",
    "dtype_name",
    "erf",
    "forget_namespace",
    "is_array",
    "is_floating",
    "is_narrow",
    "register_namespace",
    "widen",
    "xp",
]
