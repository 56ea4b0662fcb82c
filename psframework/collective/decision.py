"""How a generation works, decided from what its members found out. No I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from psframework.errors import ArgumentError, ConfigurationError, PeerLost, PsfError
from psframework.proto.v1 import collective_pb2 as pb

ALONE, SHM, DIRECT, RING = "alone", "shm", "direct", "ring"
HIERARCHICAL, CENTRAL = "hierarchical", "central"
ALGORITHMS: Final = (SHM, DIRECT, RING, HIERARCHICAL, CENTRAL)

DIRECT_HOSTS: Final = 16
"""Up to so many hosts, each exchanges with each; beyond, the ring's neighbours do."""

_APART: Final = (DIRECT, RING, CENTRAL)  # ranks of one host share no memory


def check_algorithm(algorithm: str) -> None:
    """ArgumentError if there is none of that name."""
    if algorithm and algorithm not in ALGORITHMS:
        raise ArgumentError(f"algorithm={algorithm!r}: one of {', '.join(ALGORITHMS)}, or None for the best")


def by_place(members: Sequence[pb.Candidate], spec: pb.GroupSpec) -> list[list[int]]:
    """The ranks that shall share memory, if they can; the first of each host leads it.

    A deterministic group of several hosts keeps all apart: to add those of a host first is another order.
    """
    apart = [[rank] for rank in range(len(members))]
    if spec.algorithm in _APART:
        return apart
    places: dict[str, list[int]] = {}
    for rank, member in enumerate(members):
        places.setdefault(member.place or f"rank {rank}", []).append(rank)
    return apart if spec.deterministic and len(places) > 1 else list(places.values())


def can_dial(member: pb.Candidate, other: pb.Candidate) -> bool:
    """Whether `member` can open a connection to `other`, as far as both know."""
    return other.listens == "*" or (other.listens != "" and other.listens == member.host)


def dialled(rank: int, leaders: Sequence[int], members: Sequence[pb.Candidate]) -> list[int]:
    """The leaders that one leader dials: of each pair one does; among many only neighbours are paired."""
    count, here = len(leaders), leaders.index(rank)
    if count <= DIRECT_HOSTS:
        others = [each for each in leaders if each != rank]
    else:
        others = sorted({leaders[here - 1], leaders[(here + 1) % count]})
    found = []
    for other in others:
        low, high = sorted((rank, other))
        dialler = (
            low
            if can_dial(members[low], members[high]) or not can_dial(members[high], members[low])
            else high
        )
        if dialler == rank:
            found.append(other)
    return found


def decide(
    name: str, members: Sequence[pb.Candidate], ready: Mapping[int, pb.Ready], *, central: bool
) -> pb.Start:
    """How the generation works.

    Args:
        name: of the group, for messages.
        members: by rank.
        ready: what each found out.
        central: whether the cluster has an allreduce service.

    Raises:
        PeerLost: ranks can't reach each other, and nothing helps; names a pair of them.
        ConfigurationError: the algorithm that was asked for can't be had.
    """
    algorithm = members[0].spec.algorithm
    hosts = _hosts(len(members), ready)
    cut_off = _cut_off(name, members, ready)
    if len(members) == 1:
        transport = ALONE
    elif algorithm:
        transport = algorithm
    elif len(hosts) == 1:
        transport = SHM
    elif cut_off is not None and central:
        transport = CENTRAL
    elif len(hosts) < len(members):
        transport = HIERARCHICAL
    else:
        transport = DIRECT if len(hosts) <= DIRECT_HOSTS else RING
    if transport in (DIRECT, RING, HIERARCHICAL) and cut_off is not None:
        raise cut_off
    if transport == SHM and len(hosts) > 1:
        apart = [f"rank {ranks[0]} ({members[ranks[0]].name})" for ranks in hosts[:2]]
        raise ConfigurationError(
            f"group {name!r}: {' and '.join(apart)} share no memory: algorithm='shm' can't be had"
        )
    if transport == CENTRAL and not central:
        raise ConfigurationError(
            f"group {name!r}: algorithm='central' needs an allreduce service in the cluster"
        )
    if transport in _APART:
        hosts = [[rank] for rank in range(len(members))]
    return pb.Start(transport=transport, hosts=[pb.HostRanks(ranks=ranks) for ranks in hosts])


def _hosts(size: int, ready: Mapping[int, pb.Ready]) -> list[list[int]]:
    """Ranks whose memory was proved to be shared; all others are alone."""
    hosts = [list(each.local) for _, each in sorted(ready.items()) if len(each.local) > 1]
    placed = {rank for ranks in hosts for rank in ranks}
    return sorted(hosts + [[rank] for rank in range(size) if rank not in placed])


def _cut_off(name: str, members: Sequence[pb.Candidate], ready: Mapping[int, pb.Ready]) -> PsfError | None:
    for rank, each in sorted(ready.items()):
        for other in each.unreachable:
            pair = f"rank {rank} ({members[rank].name}) can't reach rank {other} ({members[other].name})"
            return PeerLost(
                f"group {name!r}: {pair}: {each.trouble}. Let one listen (psf.connect(advertise=...)), "
                "or run an allreduce service (psf serve allreduce)",
                peer=members[other].name,
                reason="refused",
                may_have_run=False,
                rank=other,
            )
    return None
