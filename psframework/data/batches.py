"""Mini-batches of arrays."""

from __future__ import annotations

from collections.abc import Iterator

from psframework.backend import Array
from psframework.data.sampler import ShardedSampler
from psframework.errors import ArgumentError


def batches(
    x: Array,
    y: Array,
    batch_size: int,
    *,
    seed: int | None = None,
    epoch: int = 0,
    drop_last: bool = False,
    sampler: ShardedSampler | None = None,
) -> Iterator[tuple[Array, Array]]:
    """One epoch of `(x, y)` mini-batches, as copies.

    Args:
        x: samples along axis 0.
        y: targets along axis 0, as many.
        batch_size: samples in a batch; the last one may be smaller.
        seed: shuffles; the same seed and epoch give the same order. None keeps the order. Not with `sampler`.
        epoch: number of the epoch, for the shuffle. Not with `sampler`, which counts itself.
        drop_last: leave out a last batch that is smaller.
        sampler: gives this rank's samples, from where it stands; between two batches its state is the place
            to resume from.

    Raises:
        ArgumentError: lengths that differ, no samples, or a batch size under 1.
    """
    if len(x) != len(y):
        raise ArgumentError(f"x has {len(x)} samples, y has {len(y)}")
    if batch_size < 1:
        raise ArgumentError(f"batch_size must be at least 1, not {batch_size}")
    if sampler is None:
        sampler = ShardedSampler(len(x), seed=seed)
        sampler.set_epoch(epoch)
    elif seed is not None or epoch:
        raise ArgumentError("pass seed and epoch to the sampler, not to batches")
    elif sampler.n != len(x):
        raise ArgumentError(f"the sampler is over {sampler.n} samples, x has {len(x)}")
    return _batches(x, y, batch_size, sampler, drop_last)


def _batches(
    x: Array, y: Array, batch_size: int, sampler: ShardedSampler, drop_last: bool
) -> Iterator[tuple[Array, Array]]:
    while len(sampler) >= (batch_size if drop_last else 1):
        chosen = sampler.take(batch_size)
        yield x[chosen], y[chosen]
    sampler.end_epoch()
