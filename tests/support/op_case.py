"""One way to call one operation: what `tests/autograd/test_every_op.py` puts every operation through."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

import psframework as psf
from psframework.autograd import Tensor

Array = np.ndarray


@dataclass(frozen=True)
class Case:
    """One call of an operation on given arrays.

    Args:
        name: of the case: the operation's name in `psf.ops` or `F`, and after a colon what is special.
        op: called with a tensor (or an array) for each input, then the constants; one result or several.
        inputs: float64 arrays, a few elements each, away from kinks and ties; all are differentiated.
        constants: arrays of integers or booleans, which go to the device with the inputs.
        covers: public names that this case exercises; the part of `name` before the colon if empty.
        narrow: allowed error of 16-bit results, in units of the type's epsilon times the largest result.
        strided: whether to run it on non-contiguous inputs too.
        mixed: whether operands on two devices must be refused (False: the operation takes host operands).
        tolerance: of gradcheck.
    """

    name: str
    op: Callable[..., Any]
    inputs: Sequence[Array]
    constants: Sequence[Array] = ()
    covers: tuple[str, ...] = ()
    narrow: float = 2
    strided: bool = True
    mixed: bool = True
    tolerance: float = 1e-6

    @property
    def names(self) -> tuple[str, ...]:
        """The public operations that this case exercises."""
        return self.covers or (self.name.partition(":")[0],)

    def __repr__(self) -> str:
        return self.name


def one_tensor(result: Any) -> Tensor:
    """The floating results of an operation joined to one tensor, so that one number can be made of them."""
    if isinstance(result, Tensor):
        return result
    parts = [part for part in result if isinstance(part, Tensor) and part.dtype.kind not in "iub"]
    return psf.ops.concatenate([part.reshape(-1) for part in parts])


def dense(gradient: Any) -> Any:
    """A gradient as an array."""
    return gradient.to_dense() if hasattr(gradient, "to_dense") else gradient


def strided_copy(array: Array) -> Array:
    """The same values in memory that is neither contiguous nor in order."""
    if not array.ndim:
        return np.stack([array, array])[1, ...]
    backwards = array[(slice(None, None, -1),) * array.ndim]
    wide = np.repeat(backwards.swapaxes(0, -1), 2, axis=0).copy()
    return wide[::2].swapaxes(0, -1)[(slice(None, None, -1),) * array.ndim]


def collect(package: str) -> Iterator[Any]:
    """The `CASES` of every module in a folder beside this file."""
    for path in sorted((Path(__file__).parent / package).glob("*.py")):
        if path.stem != "__init__":
            yield from import_module(f"{package}.{path.stem}").CASES
