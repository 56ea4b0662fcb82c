"""Residuals: what compression left over, by parameter, in the layout of the buckets of the moment. No I/O."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from psframework.backend import Array, DType, array_like, asnumpy, is_narrow, xp
from psframework.ddp.bucket import Bucket
from psframework.errors import ArgumentError

_FLOAT32: DType = np.dtype(np.float32)


def precision(dtype: DType) -> DType:
    """The dtype that compression of gradients of `dtype` computes in."""
    return _FLOAT32 if is_narrow(dtype) else dtype


class Residuals:
    """One flat array for each bucket, as long as its buffer; zeros at first.

    Buckets may be cut anew at any time.

    Attributes:
        scale: what gradients are multiplied by at the moment, and so residuals.
    """

    def __init__(self) -> None:
        self.scale = 1.0
        self._flats: dict[tuple[str, ...], Array] = {}
        self._pieces: dict[str, Array] = {}  # in the shapes of the parameters: views of the flats, or loaded

    def added(self, bucket: Bucket) -> Array:
        """The bucket's gradients plus its residual: in its buffer, or in a new array if it has 16 bits."""
        buffer, residual = bucket.buffer, self.of(bucket)
        with np.errstate(over="ignore", invalid="ignore"):
            if buffer.dtype != residual.dtype:
                wide: Array = residual + buffer.astype(residual.dtype)
                return wide
            buffer += residual
        return buffer

    def keep(self, bucket: Bucket, rest: Array) -> None:
        """What of `added` was not sent is the residual from now on."""
        self.of(bucket)[...] = rest

    def of(self, bucket: Bucket) -> Array:
        """The residual of a bucket."""
        names = tuple(bucket.names)
        flat = self._flats.get(names)
        if flat is None or flat.shape != bucket.buffer.shape:
            flat = self._laid_out(bucket)
            self._flats = {key: value for key, value in self._flats.items() if set(key).isdisjoint(names)}
            self._flats[names] = flat
        return flat

    def _laid_out(self, bucket: Bucket) -> Array:
        buffer = bucket.buffer
        flat: Array = xp(buffer).zeros(buffer.shape, precision(buffer.dtype))
        pieces = {
            name: flat[start : start + parameter.size].reshape(parameter.shape)
            for name, start, parameter in zip(bucket.names, bucket.starts, bucket.parameters)
        }
        for name, piece in pieces.items():
            known = self._pieces.get(name)
            if known is None:
                continue
            if known.shape != piece.shape:
                raise ArgumentError(
                    f"the residual of {name} has shape {known.shape}, its gradient {piece.shape}: "
                    "the hook's state is of another model"
                )
            piece[...] = array_like(known, piece)
        self._pieces |= pieces
        return flat

    def rescale(self, scale: float) -> None:
        """From now on gradients are multiplied by `scale`: what is kept of earlier ones becomes so, too."""
        for piece in self._pieces.values():
            piece *= scale / self.scale
        self.scale = scale

    def arrays(self) -> dict[str, Array]:
        """Copies on the host, by name of the parameter, in its shape; of gradients that are not scaled."""
        return {name: np.asarray(asnumpy(piece) / self.scale) for name, piece in self._pieces.items()}

    def load(self, arrays: Mapping[str, Array]) -> None:
        """Takes over what `arrays()` returned."""
        self.scale = 1.0
        self._pieces, self._flats = {name: array.copy() for name, array in arrays.items()}, {}


def finite(*arrays: Array) -> bool:
    """Whether no element is infinite or NaN."""
    return all(bool(xp(array).isfinite(array).all()) for array in arrays)
