"""What a member wants of a group. No I/O."""

from __future__ import annotations

from dataclasses import dataclass

from psframework.collective.decision import check_algorithm
from psframework.collective.tuning import Table
from psframework.errors import ArgumentError
from psframework.proto.v1 import collective_pb2 as pb


@dataclass(frozen=True, slots=True)
class GroupOptions:
    """What a member wants of a group.

    Args:
        world_size: number of ranks.
        rank: that it wants; None: none in particular.
        deterministic: results are bitwise the same across transports.
        algorithm: the transport; "" for the best.
        timeout: default of the group's operations in seconds; 0 for no limit; None: 300.
    """

    world_size: int
    rank: int | None = None
    deterministic: bool = False
    algorithm: str = ""
    timeout: float | None = None

    def check(self) -> None:
        """Raises ArgumentError for what can't be, whatever the others want."""
        if not 1 <= self.world_size < 1 << 20:
            raise ArgumentError(f"world_size={self.world_size}: a group has at least one member")
        if self.rank is not None and not 0 <= self.rank < 1 << 20:
            raise ArgumentError(f"rank={self.rank}: ranks are 0 to {self.world_size - 1}")
        if self.timeout is not None and self.timeout < 0:
            raise ArgumentError(f"timeout={self.timeout}: seconds, or 0 for no limit")
        check_algorithm(self.algorithm)
        Table().only(self.algorithm or None, deterministic=self.deterministic)

    def spec(self, table: Table) -> pb.GroupSpec:
        """What all members must agree on, the tuning table among it."""
        return pb.GroupSpec(
            world_size=self.world_size, deterministic=self.deterministic, algorithm=self.algorithm,
            tuning=table.digest,
        )  # fmt: skip
