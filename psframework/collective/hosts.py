"""Which ranks share which hosts, and arrays in the order of hosts instead of ranks. No I/O."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from psframework.collective.work import Flat


class Hosts:
    """The ranks of each host; hosts may have different numbers of them, in any order.

    Where the leaders of hosts exchange arrays, each host's part has the length of the largest host's, since
    collectives want parts of one length; what is too much is zero, and is dropped where it arrives.

    Args:
        ranks: of each host, in rising order. Together they are 0, 1, ... size - 1.
    """

    def __init__(self, ranks: Sequence[Sequence[int]]) -> None:
        self.ranks = tuple(tuple(each) for each in ranks)
        self.count = len(self.ranks)
        self.size = sum(map(len, self.ranks))
        self.most = max(map(len, self.ranks))

    def place(self, rank: int) -> tuple[int, int]:
        """The host of a rank, and its index among the ranks there."""
        for host, ranks in enumerate(self.ranks):
            if rank in ranks:
                return host, ranks.index(rank)
        raise LookupError(f"rank {rank} is on no host")

    @cached_property
    def in_order(self) -> bool:
        """Whether the order of hosts is that of ranks, and nothing is padded."""
        return [rank for ranks in self.ranks for rank in ranks] == list(range(self.count * self.most))

    def by_host(self, array: Flat) -> Flat:
        """An array of one part a rank, in the order of ranks, as one in the order of hosts, padded."""
        if self.in_order:
            return array
        parts = array.reshape(self.size, -1)
        padded = np.zeros((self.count, self.most, parts.shape[1]), array.dtype)
        for host, ranks in enumerate(self.ranks):
            padded[host, : len(ranks)] = parts[list(ranks)]
        return padded.reshape(-1)

    def by_rank(self, padded: Flat) -> Flat:
        """The other way round."""
        if self.in_order:
            return padded
        parts = padded.reshape(self.count, self.most, -1)
        array = np.empty((self.size, parts.shape[2]), padded.dtype)
        for host, ranks in enumerate(self.ranks):
            array[list(ranks)] = parts[host, : len(ranks)]
        return array.reshape(-1)

    def to_hosts(self, rows: Flat, host: int) -> Flat:
        """What the ranks of `host` give to an all-to-all, one row a rank with a part for each rank; as one
        block for each host, padded: (host, rank that gives, rank that takes)."""
        given = len(self.ranks[host])
        parts = rows.reshape(given, self.size, -1)
        blocks = np.zeros((self.count, self.most, self.most, parts.shape[2]), rows.dtype)
        for other, ranks in enumerate(self.ranks):
            blocks[other, :given, : len(ranks)] = parts[:, list(ranks)]
        return blocks.reshape(-1)

    def from_hosts(self, blocks: Flat, host: int) -> Flat:
        """The rows that the ranks of `host` get from an all-to-all, out of the blocks of all hosts."""
        taken = len(self.ranks[host])
        parts = blocks.reshape(self.count, self.most, self.most, -1)
        rows = np.empty((taken, self.size, parts.shape[3]), blocks.dtype)
        for other, ranks in enumerate(self.ranks):
            rows[:, list(ranks)] = parts[other, : len(ranks), :taken].swapaxes(0, 1)
        return rows.reshape(-1)
