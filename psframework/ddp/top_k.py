"""TopK: only the largest gradients travel (Lin et al., Deep Gradient Compression, arXiv:1712.01887)."""

from __future__ import annotations

import asyncio
import math
from typing import Final, cast

import numpy as np

from psframework.backend import Array, widen, xp
from psframework.ddp.bucket import Bucket
from psframework.ddp.compression import Compression, aside
from psframework.ddp.residuals import finite
from psframework.errors import ArgumentError
from psframework.optim.scaler import GradScaler

_SAMPLED: Final = 1 << 16
"""Elements of an array in which the largest are looked for with the help of a sample."""

_STRIDE: Final = 61  # prime, so that the sample is of all columns of a matrix
_SPARE: Final = 16


class TopK(Compression):
    """Of each bucket, each rank sends its largest elements only; the others wait until they have added up.

    Each rank sends its own choice to all, so bytes grow with the number of ranks: it pays on slow networks,
    for a `ratio` well below 1 / ranks.

    Args:
        ratio: fraction of the elements of a bucket that is sent, at least one.
        scaler: of the losses, if they are scaled.
    """

    def __init__(self, ratio: float = 0.01, scaler: GradScaler | None = None) -> None:
        super().__init__(scaler)
        if not 0 < ratio <= 1:
            raise ArgumentError(f"TopK: ratio must be in (0, 1], not {ratio!r}")
        self._ratio = ratio

    def __repr__(self) -> str:
        return f"TopK(ratio={self._ratio})"

    async def _reduce(self, bucket: Bucket) -> int:
        indices, values, rest = await aside(bucket, self._chosen, bucket)
        group = bucket.group
        everywhere = await asyncio.gather(group.all_gather(indices), group.all_gather(values))
        await aside(bucket, self._finish, bucket, rest, *everywhere)
        return int(indices.nbytes + values.nbytes)

    def _chosen(self, bucket: Bucket) -> tuple[Array, Array, Array]:
        """Where this rank's largest elements are, ascending; what is sent of them; what is left."""
        rest = self._residuals.added(bucket)
        indices = largest(rest, math.ceil(self._ratio * rest.size))
        values = rest[indices]
        with np.errstate(over="ignore", invalid="ignore"):
            sent = values.astype(bucket.buffer.dtype)
            rest[indices] = values - sent.astype(values.dtype)  # 16 bits may not hold all of it
        return indices.astype(np.int32 if rest.size < 1 << 31 else np.int64), sent, rest

    def _finish(self, bucket: Bucket, rest: Array, indices: Array, values: Array) -> None:
        if finite(values):
            self._residuals.keep(bucket, rest)
        average(bucket.buffer, indices, values)


def largest(array: Array, count: int) -> Array:
    """Indices of the `count` largest magnitudes, ascending; NaN is larger than all."""
    namespace = xp(array)
    if count >= array.size:
        return cast(Array, namespace.arange(array.size))
    magnitudes = namespace.abs(array)
    candidates = _above(magnitudes, _threshold(magnitudes, count)) if array.size > _SAMPLED else None
    if candidates is None or len(candidates) < count:
        border = array.size - count
        return cast(Array, namespace.sort(namespace.argpartition(magnitudes, border)[border:]))
    border = len(candidates) - count
    best = namespace.argpartition(magnitudes[candidates], border)[border:] if border else slice(None)
    return cast(Array, namespace.sort(candidates[best]))


def _threshold(magnitudes: Array, count: int) -> Array:
    """Below most of the `count` largest, as a sample has it: to look at few is five times as fast."""
    sample = magnitudes[::_STRIDE]
    place = max(0, len(sample) - 2 * count // _STRIDE - _SPARE)
    return cast(Array, xp(sample).partition(sample, place)[place])


def _above(magnitudes: Array, threshold: Array) -> Array:
    return cast(Array, xp(magnitudes).flatnonzero(~(magnitudes < threshold)))  # NaN is above


def average(buffer: Array, indices: Array, values: Array) -> None:
    """What all ranks sent, added in rank order and divided by their number, in place of the buffer."""
    total = widen(buffer)
    total[...] = 0
    with np.errstate(over="ignore", invalid="ignore"):
        for where, what in zip(indices, values):
            total[where] += what.astype(total.dtype)  # a rank sends an index once
        total /= len(values)
        if total is not buffer:
            buffer[...] = total
