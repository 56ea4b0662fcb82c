"""Gelu and its derivative, exact and by tanh: one pass each."""

from __future__ import annotations

import math

from psframework.backend.arrays import Array
from psframework.backend.dtypes import DType
from psframework.backend.kernels.launch import Launcher
from psframework.backend.kernels.source import compute_name

_TYPES = {
    "half_root": repr(1 / math.sqrt(2)),
    "density": repr(1 / math.sqrt(2 * math.pi)),
    "root": repr(math.sqrt(2 / math.pi)),
    "cubic": "0.044715",
}
# The gate by which x is multiplied, and x times the gate's derivative.
_PARTS = {
    "none": """
C v = (C)x;
C gate = (C)0.5 * (1 + erf(v * (C){half_root}));
C slope = v * exp(v * v * (C)-0.5) * (C){density};
""",
    "tanh": """
C v = (C)x;
C t = tanh(v * (C){root} * (1 + (C){cubic} * v * v));
C gate = (C)0.5 * (1 + t);
C slope = v * (C)0.5 * (1 - t * t) * (C){root} * (1 + 3 * (C){cubic} * v * v);
""",
}


def body(approximate: str, dtype: DType, gradient: bool) -> str:
    """The statements of a kernel over elements."""
    result = "into = (T)((C)g * (gate + slope));" if gradient else "y = (T)(v * gate);"
    return f"typedef {compute_name(dtype)} C;{_PARTS[approximate].format(**_TYPES)}{result}"


class GeluKernels(Launcher):
    """For arrays of any shape."""

    def gelu(self, x: Array, approximate: str) -> Array:
        """x times the normal distribution's cumulative function."""
        kernel = self.elementwise("T x", "T y", body(approximate, x.dtype, False), f"gelu_{approximate}")
        made: Array = kernel(x)
        return made

    def gelu_gradient(self, g: Array, x: Array, approximate: str) -> Array:
        """The gradient of `x`."""
        statements = body(approximate, x.dtype, True)
        kernel = self.elementwise("T g, T x", "T into", statements, f"gelu_{approximate}_gradient")
        made: Array = kernel(g, x)
        return made
