"""Which samples each trainer takes in an epoch, in an order that resumes, also at another world size."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from psframework.backend import Array
from psframework.errors import ArgumentError


class ShardedSampler:
    """Gives every rank its share of a shuffled epoch; all ranks shuffle alike, without talking.

    Position i of the epoch's order goes to rank i % size. All ranks get equally many samples: at the end of
    an epoch the order wraps around. The cursor counts samples of all ranks together, so a state saved by 4
    ranks resumes on 3. An epoch that was exhausted is followed by the next one, differently shuffled.

    Args:
        n: number of samples.
        rank: this trainer's rank, in [0, size).
        size: number of trainers.
        seed: of the shuffles; None keeps the samples in order.

    Attributes:
        epoch: number of the current epoch, from 0.
        position: how many samples of it all ranks together have taken.
    """

    def __init__(self, n: int, rank: int = 0, size: int = 1, seed: int | None = 0):
        if n < 1:
            raise ArgumentError(f"a sampler needs at least one sample, not {n}")
        self.n = n
        self.seed = seed
        self.epoch = 0
        self.position = 0
        self._order: tuple[int, Array] | None = None
        self.reshard(rank, size)

    def reshard(self, rank: int, size: int) -> None:
        """Goes on as another rank or among another number of trainers: all of them, at the same position."""
        if not 0 <= rank < size:
            raise ArgumentError(f"rank must lie in [0, size), not {rank} of {size}")
        self.rank, self.size = rank, size

    def set_epoch(self, epoch: int) -> None:
        """Begins another epoch; the current one (as after `load_state_dict`) keeps its position."""
        if epoch < 0:
            raise ArgumentError(f"epoch must be at least 0, not {epoch}")
        if epoch != self.epoch:
            self.epoch, self.position = epoch, 0

    def take(self, count: int) -> Array:
        """The next samples of this epoch for this rank.

        Args:
            count: how many at most.

        Returns:
            int64 indices in [0, n); fewer than `count`, or none, at the end of the epoch.
        """
        left = len(self)
        places = self.position + self.rank + self.size * np.arange(min(count, left))
        self.position += len(places) * self.size
        taken: Array = self._epoch_order()[places % self.n]
        return taken

    def end_epoch(self) -> None:
        """Goes to the beginning of the next epoch."""
        self.epoch, self.position = self.epoch + 1, 0

    def __iter__(self) -> Iterator[int]:
        """This rank's samples of the rest of the epoch, one by one."""
        while len(index := self.take(1)):
            yield int(index[0])
        self.end_epoch()

    def __len__(self) -> int:
        """How many samples of the epoch are left for this rank."""
        return max(0, -(-(self.n - self.position) // self.size))

    def _epoch_order(self) -> Array:
        if self._order is None or self._order[0] != self.epoch:
            order = np.arange(self.n)
            if self.seed is not None:
                order = np.random.default_rng((self.seed, self.epoch)).permutation(self.n)
            self._order = self.epoch, order
        return self._order[1]

    def state_dict(self) -> dict[str, int | None]:
        """Where the epoch stands, for a checkpoint; the same on every rank between steps."""
        return {"n": self.n, "seed": self.seed, "epoch": self.epoch, "position": self.position}

    def load_state_dict(self, state: Mapping[str, int | None]) -> None:
        """Goes on where `state_dict()` stood, on as many ranks as there are now.

        Raises:
            ArgumentError: the state is of another number of samples or is incomplete.
        """
        epoch, position = state.get("epoch"), state.get("position")
        if state.get("n") != self.n or epoch is None or position is None:
            raise ArgumentError(f"the state {dict(state)} is not one of a sampler over {self.n} samples")
        self.seed, self.epoch, self.position, self._order = state.get("seed"), epoch, position, None
