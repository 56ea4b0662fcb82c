"""What torch calls otherwise: a name or keyword of torch's that a Tensor lacks is answered with ours."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection
from typing import Any

# Methods and attributes of torch's tensors, and what is written here.
TENSOR = {
    "add": "x + y",
    "bfloat16": 'x.astype("bfloat16")',
    "bmm": "x @ y",
    "byte": "x.astype(np.uint8)",
    "clamp": "x.clip(low, high)",
    "contiguous": "x itself: every operation takes arrays of any strides",
    "dim": "x.ndim",
    "div": "x / y",
    "double": "x.astype(np.float64)",
    "eq": "x == y",
    "expand_as": "x.expand(y.shape)",
    "float": "x.astype(np.float32)",
    "ge": "x >= y",
    "grad_fn": "x.node",
    "gt": "x > y",
    "half": "x.astype(np.float16)",
    "int": "x.astype(np.int32)",
    "is_contiguous": "x.data.flags",
    "le": "x <= y",
    "long": "x.astype(np.int64)",
    "lt": "x < y",
    "mT": "x.swapaxes(-1, -2)",
    "matmul": "x @ y",
    "mm": "x @ y",
    "mul": "x * y",
    "mv": "x @ y",
    "ne": "x != y",
    "neg": "-x",
    "new_tensor": "psf.tensor(data)",
    "numel": "x.size",
    "pow": "x ** y",
    "reshape_as": "x.reshape(y.shape)",
    "rsqrt": "1 / x.sqrt()",
    "sub": "x - y",
    "t": "x.T",
    "type": "x.astype(dtype)",
    "type_as": "x.to(y)",
    "view": "x.reshape(shape)",
    "view_as": "x.reshape(y.shape)",
    "where": "psf.ops.where(condition, x, y)",
}
# Functions of torch's, and ours in `psf.ops`.
OPERATIONS = {
    "bmm": "matmul",
    "cat": "concatenate",
    "clamp": "clip",
    "div": "divide",
    "eq": "equal",
    "ge": "greater_equal",
    "gt": "greater",
    "le": "less_equal",
    "lt": "less",
    "mm": "matmul",
    "mul": "multiply",
    "ne": "not_equal",
    "neg": "negative",
    "permute": "transpose",
    "sub": "subtract",
    "t": "transpose",
    "view": "reshape",
}
KEYWORDS = {"dim": "axis", "keepdim": "keepdims", "unbiased": "ddof", "correction": "ddof"}


def missing(name: str, operations: Collection[str]) -> AttributeError:
    """The error for an attribute that a Tensor lacks.

    Args:
        name: of the attribute.
        operations: public names of `psf.ops`.
    """
    ours = TENSOR.get(name, f"psf.ops.{name}(x)" if name in operations else "")
    if not ours and name.endswith("_") and not name.startswith("_"):
        ours = "x += y, x[...] = y, or writing into x.data, which the graph does not see"
    text = f"a Tensor has no {name!r}" + (f": here it is {ours}" if ours else "")
    return AttributeError(text, name=name)


def missing_operation(name: str) -> AttributeError:
    """The error for an operation that `psf.ops` lacks."""
    ours = f": NumPy calls it {OPERATIONS[name]}" if name in OPERATIONS else ""
    return AttributeError(f"psf.ops has no {name!r}{ours}", name=name)


def explain_keywords(cls: type) -> None:
    """Makes the methods of `cls` that have an `axis` say so to who calls it `dim`."""
    for name, method in list(vars(cls).items()):
        if inspect.isfunction(method) and "axis" in inspect.signature(method).parameters:
            setattr(cls, name, _explained(method))


def _explained(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return method(*args, **kwargs)
        except TypeError:
            for theirs in KEYWORDS.keys() & kwargs.keys():
                ours = KEYWORDS[theirs]
                raise TypeError(f"Tensor.{method.__name__} takes NumPy's {ours}=, not {theirs}=") from None
            raise

    return call
