"""All that one process knows about references: its values, its forks, and what is under way.

What happened goes in, and the list of what to do comes out; each call can be repeated, and calls may come in
any order. Whoever owns an account sends what it says, and now and then again all that is `pending`.
"""

from __future__ import annotations

from psframework.errors import Evicted, PsfError, WireError
from psframework.rpc.values.journey import Outcome
from psframework.rref.holds import Hold, Incoming, Outgoing
from psframework.rref.ids import ForkId, HoldId, Incarnations, RRefId
from psframework.rref.messages import (
    Action,
    Ask,
    Break,
    Delete,
    Deleted,
    Message,
    NotHeld,
    Refused,
    Register,
    Registered,
    Send,
    Unheld,
    Unhold,
)
from psframework.rref.owner import Entry, OwnerState
from psframework.rref.user import Fork, UserState

Held = Fork | RRefId
"""What a message holds: a fork of this user, or a value of this owner."""


class Account:
    """The references of one life of one process.

    Args:
        incarnation: of this process.

    Attributes:
        owner: its values.
        user: its forks.
        eviction: why this process itself is dead for all others; None while it lives.
        fenced: lives that were declared over. What they say is refused unseen, for ever.
    """

    def __init__(self, incarnation: int) -> None:
        self.incarnation = incarnation
        self.fenced = Incarnations()
        self.outgoing: Outgoing[Held] = Outgoing(incarnation)
        self.incoming = Incoming()
        self.owner = OwnerState(self.fenced, self.incoming)
        self.user = UserState(incarnation, self.fenced, self.incoming)
        self.eviction: PsfError | None = None
        self._counter = 0

    def new_id(self) -> RRefId:
        """The name of a value that this process asks for."""
        self._counter += 1
        return RRefId(self.incarnation, self._counter)

    # References in messages

    def depart(self, what: Fork | Entry, receiver: int) -> Hold[Held]:
        """A reference leaves in a message to `receiver`; it is held until the receiver has taken over."""
        if isinstance(what, Fork):
            hold = self.outgoing.add(receiver, what)
            self.user.hold(what, hold)
        else:
            hold = self.outgoing.add(receiver, what.rref)
            self.owner.hold(what, hold)
        return hold

    def outcome(self, hold: Hold[Held], outcome: Outcome) -> list[Action]:
        """How the message ended. After an answer the receiver says itself that it has taken over."""
        if hold.receiver in self.fenced:
            return []
        match outcome:
            case Outcome.ANSWERED:
                self.outgoing.answered(hold)
                return []
            case Outcome.UNKNOWN:
                return self.outgoing.doubt(hold)
            case Outcome.REFUSED:
                what, asks = self.outgoing.returned(hold)
                return asks + self._let_go(what, hold.receiver, hold.id)

    def cut(self, receiver: int) -> list[Action]:
        """A session with a process has ended, though the process may live."""
        return [] if receiver in self.fenced else self.outgoing.cut(receiver)

    def arrive(
        self, rref: RRefId, owner: int, owner_name: str, parent: ForkId | None, hold: HoldId
    ) -> tuple[Fork | None, list[Action]]:
        """A reference has come in a message.

        Returns:
            The new fork, which is of use once it is `Confirmed` (at once if it came from the owner). None if
            the value is this process's own: `Admitted` or `Rejected` says whether it is there.

        Raises:
            WireError: it came twice, or was given up.
            Evicted: its sender was declared dead.
        """
        self.check(hold.sender)
        if not self.incoming.take(hold):
            raise WireError(f"RRef {rref} came in a message that its sender has given up")
        if owner == self.incarnation:
            return None, self.owner.arrive(rref, parent, hold)
        return self.user.arrive(rref, owner, owner_name, parent, hold)

    def decline(self, hold: HoldId) -> list[Action]:
        """A reference came in a message that can't be read; if it was not taken, it never will be."""
        if hold.sender in self.fenced or not self.incoming.take(hold):
            return []
        return self.incoming.done(hold)

    # What other processes say

    def receive(self, sender: int, message: Message) -> list[Action]:
        """A message of another process.

        Raises:
            WireError: the sender speaks for somebody else.
            Evicted: the sender was declared dead.
        """
        self.check(sender)
        if self.eviction is not None and sender != self.incarnation:
            return []  # for them it is dead; what they hold here they will hear from the membership
        match message:
            case Register() | Break() | Delete():
                _check(sender, message.fork.holder, message)
                return self._from_holder(sender, message)
            case Registered(fork):
                return self.user.registered(sender, fork)
            case Refused(fork):
                return self.user.refused(sender, fork)
            case Deleted(fork):
                return self.user.deleted(sender, fork)
            case Unheld(hold):
                _check(sender, hold.sender, message)
                self.incoming.forget(hold)
                return []
            case Ask(hold):
                _check(sender, hold.sender, message)
                return self.incoming.ask(hold)
            case Unhold(hold):
                return [Send(sender, Unheld(hold)), *self._release(sender, hold)]
            case NotHeld(hold):
                return self._release(sender, hold)

    def check(self, sender: int) -> None:
        """Raises Evicted for a process that was declared dead."""
        if sender in self.fenced:
            raise Evicted(f"incarnation {sender} was declared dead: it must join again")

    def lost(self, incarnation: int, reason: str = "lease") -> list[Action]:
        """Membership says that this process is dead."""
        if not self.fenced.add(incarnation):
            return []
        self.incoming.lost(incarnation)
        actions = self.user.lost(incarnation, reason)
        for hold in self.outgoing.lost(incarnation):
            actions += self._let_go(hold.what, incarnation, hold.id)
        return actions + self.owner.lost(incarnation)

    def evicted(self, error: PsfError) -> list[Action]:
        """Membership says that this process itself is dead: it refers to nothing, and owns for itself."""
        self.eviction = error  # others took back what was theirs, and will answer nothing
        return [*self.user.evicted(error), *self.owner.evicted()]

    def pending(self, to: int) -> list[Message]:
        """All that `to` has not answered; to be sent again now and then."""
        if self.eviction is not None or to in self.fenced:
            return []
        return [*self.user.pending(to), *self.outgoing.pending(to), *self.incoming.pending(to)]

    @property
    def debtors(self) -> set[int]:
        """Processes that have something to answer."""
        candidates = {*self.user.owners, *self.outgoing.receivers, *self.incoming.senders}
        return {incarnation for incarnation in candidates if self.pending(incarnation)}

    def _from_holder(self, sender: int, message: Register | Break | Delete) -> list[Action]:
        match message:
            case Delete():
                return self.owner.delete(message)
            case Break():
                return self.owner.break_(message)
            case Register():
                actions = self.owner.register(message)
                if message.parent is None:  # it came from here, in a message that held the value until now
                    actions += self._release(sender, message.hold)
                return actions

    def _release(self, receiver: int, hold: HoldId) -> list[Action]:
        return self._let_go(self.outgoing.pop(receiver, hold), receiver, hold)

    def _let_go(self, what: Held | None, receiver: int, hold: HoldId) -> list[Action]:
        match what:
            case None:
                return []
            case Fork():
                return self.user.unhold(what, receiver, hold)
            case RRefId():
                return self.owner.unhold(what, receiver, hold)


def _check(sender: int, own: int, message: Message) -> None:
    if own != sender:
        raise WireError(f"{sender} speaks for {own}: {message}")
