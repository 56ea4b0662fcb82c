"""TopK: only the largest gradients travel (Lin et al., Deep Gradient Compression, arXiv:1712.01887)."""

from __future__ import annotations

import math

import numpy as np

from psframework.backend import Array, widen, xp
from psframework.ddp.bucket import Bucket
from psframework.ddp.compression import Compression, aside
from psframework.ddp.residuals import finite
from psframework.errors import ArgumentError


class TopK(Compression):
    """Of each bucket, each rank sends its largest elements only; the others wait until they have added up.

    Each rank sends its own choice to all, so bytes grow with the number of ranks: it pays on slow networks,
    for a `ratio` well below 1 / ranks.

    Args:
        ratio: fraction of the elements of a bucket that is sent, at least one.
    """

    def __init__(self, ratio: float = 0.01) -> None:
        super().__init__()
        if not 0 < ratio <= 1:
            raise ArgumentError(f"TopK: ratio must be in (0, 1], not {ratio!r}")
        self._ratio = ratio

    def __repr__(self) -> str:
        return f"TopK(ratio={self._ratio})"

    async def _reduce(self, bucket: Bucket) -> int:
        indices, values, rest = await aside(bucket, self._chosen, bucket)
        gathering = bucket.group.all_gather(indices), bucket.group.all_gather(values)
        everywhere = [await each for each in gathering]
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
        return namespace.arange(array.size)  # type: ignore[no-any-return]
    border = array.size - count
    return namespace.sort(namespace.argpartition(namespace.abs(array), border)[border:])  # type: ignore[no-any-return]


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
