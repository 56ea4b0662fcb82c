"""RRefs inside messages: what leaves with one, and what is made of it where it arrives."""

from __future__ import annotations

import weakref
from typing import Any, Protocol

from google.protobuf.message import DecodeError

from psframework.errors import ArgumentError, PeerLost, WireError
from psframework.proto.v1.rref_pb2 import RRefHandle
from psframework.rpc.call import PeerInfo
from psframework.rpc.values import journey as journeys
from psframework.rpc.values.journey import Journey, Outcome
from psframework.rref.encoding import fork_id, fork_message, hold_id, hold_message, rref_id, rref_message
from psframework.rref.handle import Calls, RRef
from psframework.rref.table import Home
from psframework.rref.user import Fork
from psframework.rref.waiters import fresh

KIND = "rref"


class Traveller(Calls, Protocol):
    """What references in messages need of the process that they leave or reach."""

    def is_mine(self, peer: PeerInfo) -> bool:
        """Whether a session of this process has `peer` at its other end."""

    def ended(self, peer: PeerInfo) -> None:
        """A message with references to that peer was answered, or is an answer: watches its session."""


class RRefPassenger:
    """The passenger of all connections of this process."""

    handles: type = RRef

    def __init__(self) -> None:
        self._homes: weakref.WeakSet[Traveller] = weakref.WeakSet()

    def add(self, home: Traveller) -> None:
        """One more connection."""
        if not self._homes:
            journeys.carry(KIND, self)
        self._homes.add(home)

    def remove(self, home: Traveller) -> None:
        """A connection has ended."""
        self._homes.discard(home)
        if not self._homes:
            journeys.put_down(KIND)

    def depart(self, value: Any, journey: Journey) -> bytes:
        """An RRef leaves; it is held until the receiver has taken over."""
        rref: RRef = value
        peer, table = journey.peer, rref.table
        table.check_thread()
        rref.check()
        if peer is None or not peer.incarnation:
            raise PeerLost(f"{rref!r} can be sent to living members only", may_have_run=False)
        ref = rref.ref
        eviction = table.account.eviction
        if eviction is not None and peer.incarnation != table.identity.incarnation:
            raise fresh(eviction)
        if peer.incarnation in table.account.fenced:
            raise PeerLost(f"{peer.name} is dead", peer=peer.name, reason="lease", may_have_run=False)
        if isinstance(ref, Home) and ref.entry is None:
            raise ArgumentError(f"{rref!r} can't be passed on before the function that got it has started")
        hold = table.depart(ref, peer)
        home: Any = rref._calls

        def ended(outcome: Outcome) -> None:
            table.outcome(hold, outcome)
            if outcome is Outcome.ANSWERED:
                home.ended(peer)

        journey.on_outcome(ended)
        if journey.is_reply:
            table.replied(hold)
            home.ended(peer)
        message = RRefHandle(
            rref=rref_message(rref.id),
            owner=rref.owner_incarnation,
            owner_name=rref.owner_name(),
            parent=fork_message(ref.id) if isinstance(ref, Fork) else None,
            hold=hold_message(hold.id),
            receiver=peer.incarnation,
        )
        return message.SerializeToString()

    def arrive(self, data: bytes, journey: Journey) -> RRef:
        """A reference has come; the function that gets it starts once its owner knows."""
        try:
            message = RRefHandle.FromString(data)
        except DecodeError as error:
            raise WireError(f"a reference that can't be read: {error}") from None
        hold, peer = hold_id(message.hold), journey.peer
        if peer is None or hold.sender != peer.incarnation:
            raise WireError("a reference in a message of another process than the one that holds it")
        home = self._home(message.receiver, peer)
        table = home.table
        if table.closed is not None:
            raise PeerLost(f"{table.identity.name} is ending", peer=table.identity.name, may_have_run=False)
        parent = fork_id(message.parent) if message.HasField("parent") else None
        owner = (message.owner, message.owner_name)
        ref, waiting = table.arrive(rref_id(message.rref), owner, parent, hold, peer)
        if waiting is not None:
            journey.before_start.append(waiting)
        if isinstance(ref, Home):
            journey.on_outcome(lambda outcome: table.abandon(ref) if outcome is Outcome.REFUSED else None)
        return RRef(home, ref)

    def decline(self, data: bytes, journey: Journey) -> None:
        """A reply can't be read: the senders of references in it may let go, also of those not reached."""
        try:
            message = RRefHandle.FromString(data)
            hold, peer = hold_id(message.hold), journey.peer
            if peer is not None and hold.sender == peer.incarnation and hold.counter:
                self._home(message.receiver, peer).table.decline(hold)
        except (DecodeError, WireError):  # other bytes
            return

    def _home(self, receiver: int, peer: PeerInfo) -> Traveller:
        homes = [home for home in self._homes if home.table.identity.incarnation == receiver]
        if len(homes) > 1:  # connections to several clusters, which count incarnations alike
            homes = [home for home in homes if home.is_mine(peer)]
        if not homes:
            raise WireError(f"a reference for incarnation {receiver}, which is not this process")
        return homes[0]


PASSENGER = RRefPassenger()
