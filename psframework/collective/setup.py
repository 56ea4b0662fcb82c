"""What each rank of a sealed generation does before it starts: shares memory, and dials other hosts."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from psframework.collective.carrier import SERVICE
from psframework.collective.decision import by_place, can_dial, dialled
from psframework.collective.seat import Seat
from psframework.collective.shm import segment_bytes
from psframework.errors import PeerLost, PsfError
from psframework.membership.view import Member
from psframework.proto.v1 import collective_pb2 as pb
from psframework.rpc.deadline import Deadline
from psframework.rpc.session.peer import Peer
from psframework.wire.shm import Segment
from psframework.wire.threads import in_thread

log = logging.getLogger(__name__)

SETUP: Final = f"/{SERVICE}/Setup"
DIAL_SECONDS: Final = 10.0
_BOOT: Final = Path("/proc/sys/kernel/random/boot_id")


def place(socket: str) -> str:
    """The same for processes that hand each other segments: of one kernel, and with one folder for sockets.

    Args:
        socket: at which this process takes segments; "" if it takes none.
    """
    if not socket:
        return ""
    try:
        folder = os.stat(os.path.dirname(socket))
        return f"{_BOOT.read_text().strip()}:{folder.st_dev}:{folder.st_ino}"
    except OSError:
        return ""


async def prepare(seat: Seat, spec: pb.GroupSpec, deadline: Deadline) -> pb.Ready:
    """This rank's part of the set-up: hands memory to its host if it leads it, and dials other hosts."""
    hosts = by_place(seat.members, spec)
    mine = next(ranks for ranks in hosts if seat.rank in ranks)
    ready = pb.Ready()
    if seat.rank != mine[0]:
        return ready
    others = dialled(seat.rank, [ranks[0] for ranks in hosts], seat.members)
    local, (far, trouble) = await asyncio.gather(
        share(seat, 0, mine, deadline), _dial(seat, others, deadline)
    )
    apart = [rank for rank in mine if rank not in local]  # perhaps for want of a session, which was tried
    near, more_trouble = await _dial(seat, apart, Deadline.after(0))
    ready.local.extend(local)
    ready.unreachable.extend(far + near)
    ready.trouble = trouble or more_trouble
    return ready


async def share(
    seat: Seat, number: int, ranks: Sequence[int], deadline: Deadline, nbytes: int = 0
) -> list[int]:
    """Makes segment `number` of this host, and hands it to the other ranks; returns those that have it.

    A rank that turns out to be on another host is left out; if there is no memory, all are.
    """
    mates = await asyncio.gather(*(_mate(seat, rank, deadline) for rank in ranks if rank != seat.rank))
    local = sorted([seat.rank, *(rank for rank, peer in mates if peer is not None)])
    if len(local) == 1:
        return local
    try:
        segment = await in_thread(Segment.create, nbytes or segment_bytes(len(local)))
        peers = [peer for _, peer in mates if peer is not None]
        try:
            await asyncio.gather(
                *(_hand_over(seat, number, segment, local, peer, deadline) for peer in peers)
            )
        except BaseException:
            segment.close()
            raise
    except PeerLost:
        raise
    except PsfError as error:
        log.warning("%s: its ranks on this machine share no memory: %s", seat, error)
        return [seat.rank]
    seat.own(number, segment)
    return local


async def withhold(seat: Seat, number: int, ranks: Sequence[int], deadline: Deadline) -> None:
    """There is no memory for segment `number`: all ranks of this host, which wait for it, hear that."""
    seat.own(number, None)
    request = pb.SetupRequest(group=seat.id, local=ranks, number=number)
    for rank in ranks:
        if rank != seat.rank:
            peer = await seat.reach(rank, deadline)
            await peer.call(SETUP, request, pb.SetupReply, deadline=deadline)


async def _mate(seat: Seat, rank: int, deadline: Deadline) -> tuple[int, Peer | None]:
    """The session with a rank that is said to be on this host; None if no descriptor gets there."""
    try:
        peer = await seat.reach(rank, _soon(seat, rank, deadline))
        proved = peer.segments.proved or await peer.segments.prove()
    except PsfError as error:
        if seat.error is not None:
            raise
        log.warning("%s: no memory is shared with %s: %s", seat, seat.who(rank), error)
        return rank, None
    return rank, peer if proved else None


async def _hand_over(
    seat: Seat, number: int, segment: Segment, local: Sequence[int], peer: Peer, deadline: Deadline
) -> None:
    shared = await peer.share(segment)
    request = pb.SetupRequest(group=seat.id, segment=shared, local=local, number=number)
    await peer.call(SETUP, request, pb.SetupReply, deadline=deadline)
    peer.unshare(shared)  # it keeps a mapping of its own


async def _dial(seat: Seat, ranks: Sequence[int], deadline: Deadline) -> tuple[list[int], str]:
    """Opens sessions with other ranks; those that could not be reached, and why."""

    async def attempt(rank: int) -> tuple[int, str]:
        try:
            await seat.reach(rank, _soon(seat, rank, deadline))
        except PsfError as error:
            if seat.error is not None:
                raise
            return rank, str(error)
        return rank, ""

    tried = await asyncio.gather(*map(attempt, ranks))
    failed = [(rank, why) for rank, why in tried if why]
    return [rank for rank, _ in failed], "; ".join(why for _, why in failed[:1])


def _soon(seat: Seat, rank: int, deadline: Deadline) -> Deadline:
    """How long a session with a rank is tried for: not at all if neither end can dial."""
    here, there = seat.members[seat.rank], seat.members[rank]
    hopeless = not can_dial(here, there) and not can_dial(there, here)
    return min(deadline, Deadline.after(0 if hopeless else DIAL_SECONDS))


def cores() -> int:
    """How many this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def candidate(member: Member, listens: str, socket: str, spec: pb.GroupSpec, ticket: int) -> pb.Candidate:
    """What this member writes down when it wants to be in a group.

    Args:
        member: this process.
        listens: who can dial it.
        socket: at which it takes segments.
        spec: what it wants.
        ticket: number of the attempt.
    """
    return pb.Candidate(
        name=member.name,
        incarnation=member.incarnation,
        ticket=ticket,
        spec=spec,
        place=place(socket),
        host=member.labels.get("host", ""),
        listens=listens,
    )
