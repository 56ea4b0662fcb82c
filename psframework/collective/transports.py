"""Makes the transport of one rank, as rank 0 has decided."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from psframework.collective import decision
from psframework.collective.alone import Alone
from psframework.collective.carrier import Part
from psframework.collective.central import Central
from psframework.collective.hierarchical import Hierarchical
from psframework.collective.network import Network
from psframework.collective.resident import Share
from psframework.collective.seat import Seat
from psframework.collective.setup import cores, share, withhold
from psframework.collective.shm import SharedMemory
from psframework.collective.work import Transport
from psframework.errors import PeerLost
from psframework.proto.v1 import collective_pb2 as pb
from psframework.rpc.deadline import Deadline
from psframework.wire.shm import Segment

if TYPE_CHECKING:
    from psframework.collective.gathering import Home

SHARE_SECONDS: Final = 60.0
"""Until all ranks have asked for the same resident array."""

LEADERS = "leaders"
"""Channel of the letters between leaders of hosts."""


async def build(seat: Seat, start: pb.Start, home: Home, deadline: Deadline, completed: int = 0) -> Transport:
    """The transport; the seat learns which ranks share memory.

    Args:
        seat: in the generation.
        start: how it works.
        home: the groups of this process.
        deadline: of the set-up.
        completed: the last operation of the generation that this one continues.
    """
    seat.hosts = tuple(tuple(host.ranks) for host in start.hosts)
    kind, name = start.transport, seat.id.name
    if kind == decision.ALONE:
        return Alone(name, seat.names[0])
    if kind == decision.CENTRAL:
        return await _central(seat, home, deadline, completed)
    mine = next(ranks for ranks in seat.hosts if seat.rank in ranks)
    if kind == decision.SHM:
        return await _shared(seat, mine, deadline)
    spec = seat.members[seat.rank].spec
    tuning = home.table.only(spec.algorithm or None, deterministic=spec.deterministic)
    if kind != decision.HIERARCHICAL:
        return Network(seat.post, tuning, group=name)
    leaders = sorted(ranks[0] for ranks in seat.hosts)
    local = await _shared(seat, mine, deadline) if len(mine) > 1 else None
    between = None
    if seat.rank in leaders and len(leaders) > 1:
        between = Network(Part(seat.post, leaders), tuning, LEADERS, name)
    return Hierarchical(local, between, seat.rank, seat.hosts)


async def _shared(seat: Seat, ranks: Sequence[int], deadline: Deadline) -> SharedMemory:
    segment = await seat.segment(0, deadline)
    names = {rank: seat.names[rank] for rank in ranks}
    own, more = ranks.index(seat.rank), _sharing(seat, ranks)
    return SharedMemory(own, len(ranks), segment, names, cores(), seat.id.name, more)


def _sharing(seat: Seat, ranks: Sequence[int]) -> Share:
    """What makes further segments for the ranks of this host: the first of them does, for all."""
    numbers = itertools.count(1)

    async def more(nbytes: int) -> Segment:
        number, deadline = next(numbers), Deadline.after(SHARE_SECONDS)
        if seat.rank == ranks[0] and len(await share(seat, number, ranks, deadline, nbytes)) < len(ranks):
            await withhold(seat, number, ranks, deadline)
        return await seat.segment(number, deadline)

    return more


async def _central(seat: Seat, home: Home, deadline: Deadline, completed: int) -> Central:
    from psframework.collective.gathering import ALLREDUCE

    servers = home.membership.members(role=ALLREDUCE)
    if not servers:
        raise PeerLost("the allreduce service is gone", reason="closed", may_have_run=False)
    member = servers[0]
    address = home.directory.address_of(member.name)
    peer = await home.agent.connect(
        address.addresses, name=member.name, role=ALLREDUCE, incarnation=member.incarnation, deadline=deadline
    )
    group = f"{seat.id.job}/{seat.id.name}"
    return await Central.join(
        peer, group, len(seat.members), deadline, rank=seat.rank, generation=seat.id.generation,
        completed=completed,
    )  # fmt: skip
