"""Pieces of parameters as tensors of their own: what one rank of a sharded optimizer steps. No I/O."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from psframework.autograd.sparse import SparseRows
from psframework.autograd.tensor import Tensor
from psframework.backend import Array, xp
from psframework.ddp.partition import Extent, Piece


def flat(parameter: Tensor) -> Array:
    """The parameter's elements with one axis, in its own memory, which is made contiguous if need be."""
    data = parameter.data
    if not data.flags.c_contiguous:
        data = parameter.data = data.copy(order="C")
    return data.reshape(-1)


def bytes_of(parameter: Tensor) -> Array:
    """The parameter's memory."""
    return flat(parameter).view(np.uint8)


class Part:
    """Some units of a parameter, as a tensor over the same memory.

    Args:
        parameter: the whole.
        extent: how it is cut into units.
        piece: which of them.

    Attributes:
        tensor: in the parameter's shape if that is not cut, of the same rows if it is cut there, else flat.
    """

    def __init__(self, parameter: Tensor, extent: Extent, piece: Piece) -> None:
        self.parameter, self.piece, self._extent = parameter, piece, extent
        self._start, self._stop = piece.first * extent.unit, piece.last * extent.unit
        self._shape: tuple[int, ...] = (self._stop - self._start,)
        if extent.units <= 1:
            self._shape = parameter.shape
        elif parameter.ndim and extent.units == parameter.shape[0]:
            self._shape = (piece.last - piece.first, *parameter.shape[1:])
        self.tensor = Tensor(self._view(flat(parameter)), requires_grad=True)

    def _view(self, elements: Array) -> Array:
        return elements[self._start : self._stop].reshape(self._shape)

    def refresh(self) -> None:
        """Data and gradient as the parameter has them now."""
        self.tensor.data = self._view(flat(self.parameter))
        gradient = self.parameter.grad
        if gradient is None:
            self.tensor.grad = None
        elif isinstance(gradient, SparseRows):
            self.tensor.grad = self._rows(gradient.coalesce())
        else:
            self.tensor.grad = self._view(gradient.reshape(-1))

    def _rows(self, gradient: SparseRows) -> SparseRows:
        """Of a sparse gradient; where rows are cut, its elements are the rows."""
        if self._shape == gradient.shape:
            return gradient
        namespace, width = xp(gradient.values), gradient.size // max(1, gradient.shape[0])
        first, last = self._start // width, -(-self._stop // width)
        low, high = namespace.searchsorted(gradient.rows, namespace.asarray([first, last])).tolist()
        rows, values = gradient.rows[low:high], gradient.values[low:high]
        if self._shape[1:] == gradient.shape[1:] and self._extent.unit == width:
            return SparseRows(rows - first, values, self._shape, coalesced=True)
        elements = (rows[:, None] * width + namespace.arange(width)).reshape(-1)
        inside = (elements >= self._start) & (elements < self._stop)
        return SparseRows(elements[inside] - self._start, values.reshape(-1)[inside], self._shape, True)

    def cut(self, slot: Array) -> Array:
        """The part of a slot of the whole parameter."""
        each = slot.size // max(1, self._extent.units)
        shape = self._shape if slot.shape == self.parameter.shape else (-1, *slot.shape[1:])
        return slot.reshape(-1)[self.piece.first * each : self.piece.last * each].reshape(shape)


def put(whole: Array, part: Array, piece: Piece, extent: Extent) -> None:
    """Writes a part of a slot where it belongs in the slot of the whole parameter."""
    each = whole.size // max(1, extent.units)
    whole.reshape(-1)[piece.first * each : piece.last * each] = part.reshape(-1)


def pack(parameters: Sequence[Tensor], share: Sequence[Piece], extents: Sequence[Extent], out: Array) -> None:
    """Writes the bytes of a rank's pieces of the parameters to `out`."""
    for piece in share:
        start, stop = _span(piece, extents[piece.index])
        out[piece.offset : piece.offset + stop - start] = bytes_of(parameters[piece.index])[start:stop]


def unpack(
    parameters: Sequence[Tensor], share: Sequence[Piece], extents: Sequence[Extent], data: Array, offset: int
) -> None:
    """Writes to the parameters what `data` has of the bytes that `pack` makes of a rank's pieces.

    Args:
        parameters: of the model.
        share: the pieces of that rank.
        extents: of the parameters.
        data: some of the bytes.
        offset: of the first of them.
    """
    for piece in share:
        start, stop = _span(piece, extents[piece.index])
        low = max(piece.offset, offset)
        high = min(piece.offset + stop - start, offset + data.size)
        if low < high:
            target = start + low - piece.offset
            source = data[low - offset : high - offset]
            bytes_of(parameters[piece.index])[target : target + high - low] = source


def _span(piece: Piece, extent: Extent) -> tuple[int, int]:
    width = extent.unit * extent.itemsize
    return piece.first * width, piece.last * width
