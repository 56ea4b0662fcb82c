"""A member's seat in one generation of a group: its sessions with the other ranks, and their losses."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, Protocol

from psframework.collective.carrier import Carrier
from psframework.collective.group import ProcessGroup
from psframework.errors import PeerLost, PermissionDenied, ResourceExhausted, WireError
from psframework.membership.signal import Signal
from psframework.proto.v1 import collective_pb2 as pb
from psframework.rpc.deadline import Deadline
from psframework.rpc.functions.routes import Directory as Addresses
from psframework.rpc.session.agent import Agent
from psframework.rpc.session.peer import Peer
from psframework.wire.shm import Segment

LOOK_SECONDS: Final = 0.02
_MOST_SEGMENTS: Final = 256


class Directory(Addresses, Protocol):
    """Knows the members."""

    def has_ended(self, incarnation: int, /) -> bool:
        """Whether the view says that this life of a member is over; False too if it does not know."""
        ...

    def listens(self) -> str:
        """Who can dial this process: nobody (""), those of one machine (its name), or everybody ("*")."""
        ...


class Seat:
    """One rank of one generation.

    Args:
        id: of the generation.
        rank: this one.
        members: by rank, as they were sealed.
        agent: this process's sessions.
        directory: knows where members are.
        tell: lets the other ranks know of a loss.

    Attributes:
        id, rank, members: as given.
        names: of the members.
        post: carries letters.
        group: what the user has; None until it is set up.
        error: why the generation has ended; None while it lives.
        departed: ranks that have closed it in order.
        lost: ranks that are gone.
        hosts: the ranks that share memory, once that is decided.
        shrinks: whether the group of those that survived it is being made.
        splits: how often it was split.
        is_part: whether it came of a split.
        on_change: called when a rank has departed, or the generation has ended.
    """

    def __init__(
        self,
        id: pb.GroupId,
        rank: int,
        members: Sequence[pb.Candidate],
        agent: Agent,
        directory: Directory,
        tell: Callable[[Seat, BaseException], object],
    ) -> None:
        self.id, self.rank, self.members = id, rank, tuple(members)
        self.names = tuple(member.name for member in members)
        self.post = Carrier(id, rank, self.names, self.reach, self.lose)
        self.group: ProcessGroup | None = None
        self.error: BaseException | None = None
        self.departed: set[int] = set()
        self.lost: set[int] = set()
        self.hosts: tuple[tuple[int, ...], ...] = ()
        self.shrinks = False
        self.splits = 0
        self.is_part = False
        self.on_change: Callable[[], object] = lambda: None
        self._agent, self._directory, self._tell = agent, directory, tell
        self._ranks = {member.incarnation: rank for rank, member in enumerate(members)}
        self._peers: dict[int, tuple[Peer, Callable[[], None]]] = {}
        self._segments: dict[int, Segment | None] = {}
        self._changed = Signal()

    def __str__(self) -> str:
        return f"generation {self.id.generation} of group {self.id.name!r}"

    @property
    def lives(self) -> bool:
        """Whether the generation is set up, and can go on: all its members are still in it."""
        group = self.group
        ended = group is None or group.closed or group.error is not None or self.error is not None
        return not ended and not self.departed

    @property
    def connected(self) -> set[int]:
        """The ranks that this one has sessions with."""
        return set(self._peers)

    def who(self, rank: int) -> str:
        """A rank, for people."""
        return f"rank {rank} ({self.names[rank]})"

    def rank_of(self, incarnation: int) -> int | None:
        """The rank of a life of a member; None if it has none."""
        return self._ranks.get(incarnation)

    def check(self, source: int, caller: Peer) -> None:
        """PermissionDenied unless `caller` is that rank."""
        if self.rank_of(caller.info.incarnation) != source:
            raise PermissionDenied(f"{caller.info.name} is not rank {source} of {self}")
        if source != self.rank and source not in self._peers:
            self._watch(source, caller)

    # Sessions

    async def reach(self, rank: int, deadline: Deadline) -> Peer:
        """The session with a rank; it is dialled, or waited for if only it can dial.

        Raises:
            PeerLost: it is gone, or can't be reached.
        """
        known = self._peers.get(rank)
        if known is not None:
            return known[0]
        member = self.members[rank]
        while True:
            peer = self._agent.peer_for(member.name, member.incarnation)
            if peer is None:
                peer = await self._dial(member, deadline)
            if peer is not None:
                if rank not in self._peers:
                    self._watch(rank, peer)
                return peer
            await asyncio.sleep(LOOK_SECONDS)

    async def _dial(self, member: pb.Candidate, deadline: Deadline) -> Peer | None:
        address = self._directory.address_of(member.name)
        if address.incarnation != member.incarnation:
            text = f"incarnation {member.incarnation} of {member.name} has ended; another one lives"
            raise PeerLost(text, peer=member.name, reason="incarnation", may_have_run=False)
        if address.addresses:
            return await self._agent.connect(
                address.addresses,
                name=member.name,
                role=address.role,
                incarnation=member.incarnation,
                deadline=deadline,
            )
        if deadline.expired:
            text = f"{member.name} has no address to be dialled at, and has no connection to this process"
            raise PeerLost(text, peer=member.name, reason="refused", may_have_run=False)
        return None

    def _watch(self, rank: int, peer: Peer) -> None:
        take_back = peer.when_lost(partial(self._ended, rank, peer))
        self._peers[rank] = peer, take_back
        if peer.lost is not None:  # it was lost before
            self._ended(rank, peer)

    def _ended(self, rank: int, peer: Peer) -> None:
        if self._peers.get(rank, (None,))[0] is not peer:
            return
        del self._peers[rank]
        if self._agent.closed:
            return  # it is not the other one that is gone
        member = self.members[rank]
        if self._agent.peer_for(member.name, member.incarnation) is None:  # else they have another one
            assert peer.lost is not None
            self.lose(rank, peer.lost)

    # What becomes of it

    def lose(self, rank: int, error: PeerLost) -> None:
        """A rank is gone, or can't be reached any more."""
        if rank in self.departed or rank in self.lost or self.error is not None:
            return
        self.lost.add(rank)
        lost = PeerLost(
            f"{self.who(rank)} of group {self.id.name!r} is gone: {error}",
            peer=self.names[rank],
            reason=error.reason,
            may_have_run=error.may_have_run,
            rank=rank,
        )
        self.abort(lost)
        self._tell(self, lost)  # not all have a session with it

    def depart(self, rank: int, completed: int, why: PeerLost | None = None) -> None:
        """A rank has closed the group in order, after that operation; maybe because of another's loss."""
        self.departed.add(rank)
        error = why or PeerLost(
            f"{self.who(rank)} has closed group {self.id.name!r} after operation {completed}",
            peer=self.names[rank],
            reason="closed",
            rank=rank,
        )
        self.post.depart(rank, error)
        if self.group is None:
            self.abort(error)
        else:
            self.group.abort(error, after=completed)
        self.on_change()

    def abort(self, error: BaseException) -> None:
        """The generation has ended for all ranks."""
        if self.group is not None:
            self.group.abort(error)
        self.end(error)

    def end(self, error: BaseException) -> None:
        """Nobody waits for letters any more."""
        if self.error is None:
            self.error = error
            self.post.fail(error)
            self._changed.notify()
            self.on_change()

    def forget(self) -> None:
        """Nobody is told any more of what becomes of the sessions."""
        for _, take_back in self._peers.values():
            take_back()
        self._peers.clear()
        for segment in self._segments.values():
            if segment is not None:
                segment.close()
        self._segments.clear()

    # Memory that ranks of a host share

    def receive(self, number: int, segment: Segment) -> None:
        """The leader of this host has handed a segment over."""
        if number in self._segments or len(self._segments) >= _MOST_SEGMENTS:
            raise WireError(f"segment {number} of {self} was handed over before")
        self._segments[number] = Segment.from_fd(os.dup(segment.fd))
        self._changed.notify()

    async def segment(self, number: int, deadline: Deadline) -> Segment:
        """A segment of this host, once it is here; it belongs to whoever asked.

        Raises:
            ResourceExhausted: there was no memory for it.
        """

        def here() -> bool:
            if self.error is not None:
                raise self.error
            return number in self._segments

        await self._changed.until(here, deadline, f"segment {number} of {self}")
        segment = self._segments.pop(number)
        if segment is None:
            raise ResourceExhausted(f"{self.id.name!r}: the ranks of this machine share no more memory")
        return segment

    def own(self, number: int, segment: Segment | None) -> None:
        """This rank leads its host, and made a segment for it; or whoever leads it could not (None)."""
        self._segments[number] = segment
        self._changed.notify()
