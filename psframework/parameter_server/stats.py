"""What a handle has done, in numbers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from psframework.parameter_server.dedupe import Outcome
from psframework.parameter_server.link import ShardLink
from psframework.wire.lanes import Lane, LaneStats


@dataclass(slots=True)
class Statistics:
    """What a handle has done.

    Attributes:
        pushes, pulls: finished ones.
        outcomes: how many pushes were applied, staged (applied since, or waiting) and dropped.
        lanes: payload traffic by lane.
        shards: traffic by shard, as bytes (sent, received).
        saved_bytes: what compression kept from travelling.
    """

    pushes: int = 0
    pulls: int = 0
    outcomes: dict[str, int] = field(default_factory=lambda: {o.value: 0 for o in Outcome})
    lanes: LaneStats = field(default_factory=LaneStats)
    shards: dict[str, tuple[int, int]] = field(default_factory=dict)
    saved_bytes: int = 0

    def with_traffic(self, links: Iterable[ShardLink]) -> Statistics:
        """A copy, with the traffic of these connections."""
        lanes = LaneStats()
        shards: dict[str, tuple[int, int]] = {}
        saved = 0
        for link in links:
            stats = link.stats
            lanes.merge(stats)
            sent = sum(stats.sent[lane].nbytes for lane in Lane)
            shards[link.shard.name] = (sent, sum(stats.received[lane].nbytes for lane in Lane))
            saved += link.saved_bytes
        return Statistics(self.pushes, self.pulls, dict(self.outcomes), lanes, shards, saved)
