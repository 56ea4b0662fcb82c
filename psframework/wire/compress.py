"""Optional compression of float arrays by a narrower dtype; nothing else gains on gradients.

Float32 gradients do not compress losslessly (gzip: 1.08x at 37 MB/s), so a smaller dtype, or sending
fewer rows, is what shrinks them. The narrowed array travels as an ordinary array of its dtype: its
`ArraySpec` says all that the receiver must know. Rounding is to nearest even, the same on every
machine, so a result stays reproducible; it is no longer that of the uncompressed run.
"""

from __future__ import annotations

from enum import Enum
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from psframework.backend import bfloat16
from psframework.errors import ArgumentError, ConfigurationError, WireError

Array = npt.NDArray[Any]


class Compression(Enum):
    """What float32 and float64 arrays become on the wire; the value is the name in flags."""

    NONE = "none"
    """They stay what they are."""
    FP16 = "fp16"
    """IEEE half: 11 bits of precision, up to 65504; larger values raise."""
    BF16 = "bf16"
    """The upper half of a float32: its whole range, 8 bits of precision; the faster one on CPUs."""


_NARROW: Final = {Compression.FP16: np.dtype(np.float16), Compression.BF16: bfloat16}
_WIDE: Final = (np.dtype(np.float32), np.dtype(np.float64))


def parse(name: str) -> Compression:
    """The compression of a flag; ConfigurationError for another name."""
    try:
        return Compression(name.strip().lower())
    except ValueError:
        names = ", ".join(each.value for each in Compression)
        raise ConfigurationError(f"compression {name!r}: choose one of {names}") from None


def wire_dtype(dtype: np.dtype[Any], method: Compression) -> np.dtype[Any]:
    """The dtype in which an array of `dtype` travels; only float32 and float64 are narrowed."""
    native = dtype.newbyteorder("=")
    return _NARROW.get(method, native) if native in _WIDE else native


def narrow(array: Array, method: Compression) -> Array:
    """The array in its wire dtype; `array` itself where nothing is to be done.

    Raises:
        ArgumentError: a finite value is too large for the narrower dtype.
    """
    target = wire_dtype(array.dtype, method)
    if target == array.dtype:
        return array
    try:
        with np.errstate(over="raise", under="ignore", invalid="ignore"):
            if method is Compression.BF16 and array.dtype.itemsize == 8:
                array = array.astype(np.float32)
            return array.astype(target)
    except FloatingPointError:
        raise ArgumentError(
            f"a value is beyond the range of {method.value}: use bf16, scale the loss, or send it as it is"
        ) from None


def widen(array: Array, dtype: np.dtype[Any], out: Array | None = None) -> Array:
    """The array as `dtype` again (into `out` if given): what the receiver of a narrowed array does.

    Raises:
        WireError: the array is neither of `dtype` nor a narrowed form of it, or does not fit `out`.
    """
    if array.dtype != dtype and not (dtype in _WIDE and array.dtype in _NARROW.values()):
        raise WireError(f"an array of {array.dtype.name} came where {dtype.name} was expected")
    if out is None:
        return array if array.dtype == dtype else array.astype(dtype)
    if out.shape != array.shape or out.dtype != dtype:
        raise WireError(f"an array {array.shape} came where {out.dtype.name}{list(out.shape)} was expected")
    np.copyto(out, array)
    return out
