"""Statistics are copies, with the traffic of every connection added up."""

from dataclasses import dataclass, field

from psframework.parameter_server.registry import ShardRef
from psframework.parameter_server.stats import Statistics
from psframework.wire.lanes import Lane, LaneStats


@dataclass
class Link:
    shard: ShardRef
    saved_bytes: int
    stats: LaneStats = field(default_factory=LaneStats)


def test_traffic_is_added_up_by_lane_and_by_shard():
    one, two = Link(ShardRef("a", 1), 10), Link(ShardRef("b", 2), 5)
    one.stats.add_sent(Lane.SHM, 100)
    one.stats.add_received(Lane.INLINE, 7)
    two.stats.add_sent(Lane.SHM, 20)
    counts = Statistics(pushes=3)
    counts.outcomes["applied"] = 3

    seen = counts.with_traffic([one, two])  # type: ignore[list-item]

    assert seen.lanes.sent[Lane.SHM].nbytes == 120
    assert seen.shards == {"a": (100, 7), "b": (20, 0)}
    assert seen.saved_bytes == 15
    counts.outcomes["applied"] = 4
    assert (seen.pushes, seen.outcomes["applied"]) == (3, 3)
