"""What owners and users of values tell each other, and what their state machines want done.

Each request may arrive late, twice, or never; whoever sends it repeats it until its answer comes. The answers
are made anew for each request, and are not repeated by themselves.

    holder to owner       Register, Break     answered by Registered or Refused
                          Delete              answered by Deleted
    receiver to sender    Unhold              answered by Unheld
    sender to receiver    Ask                 answered by NotHeld; no answer while it is held

What a process says that was declared dead is answered by `Evicted`, which is no message but an error.
"""

from __future__ import annotations

from dataclasses import dataclass

from psframework.errors import PsfError
from psframework.rref.ids import ForkId, HoldId, RRefId


@dataclass(frozen=True, slots=True)
class Register:
    """A holder has got a reference.

    Args:
        fork: the new one.
        rref: the value.
        parent: the fork that it came from; None if it came from the owner.
        hold: the message that it came in.
    """

    fork: ForkId
    rref: RRefId
    parent: ForkId | None
    hold: HoldId


@dataclass(frozen=True, slots=True)
class Break:
    """The creation that `fork` stands for failed, as far as its creator knows: each use raises `error`."""

    fork: ForkId
    rref: RRefId
    error: PsfError


@dataclass(frozen=True, slots=True)
class Registered:
    """The owner has (or had) the fork."""

    fork: ForkId


@dataclass(frozen=True, slots=True)
class Refused:
    """The owner does not have the fork, and will not: nobody refers to the value, or it was never made."""

    fork: ForkId


@dataclass(frozen=True, slots=True)
class Delete:
    """A holder does not need a fork any more."""

    fork: ForkId


@dataclass(frozen=True, slots=True)
class Deleted:
    """The owner has forgotten the fork."""

    fork: ForkId


@dataclass(frozen=True, slots=True)
class Unhold:
    """The reference in a message was taken over (or is not wanted): its sender may let go."""

    hold: HoldId


@dataclass(frozen=True, slots=True)
class Unheld:
    """The sender has let go."""

    hold: HoldId


@dataclass(frozen=True, slots=True)
class Ask:
    """Did the message with this reference arrive? If not, it is refused from now on."""

    hold: HoldId


@dataclass(frozen=True, slots=True)
class NotHeld:
    """The receiver does not need the sender's hold, now and in future."""

    hold: HoldId


Message = Register | Break | Registered | Refused | Delete | Deleted | Unhold | Unheld | Ask | NotHeld


# Actions: what a state machine wants done


@dataclass(frozen=True, slots=True)
class Send:
    """Tell the process of incarnation `to`."""

    to: int
    message: Message


@dataclass(frozen=True, slots=True)
class Ready:
    """A value of this owner is there, or its error."""

    rref: RRefId


@dataclass(frozen=True, slots=True)
class Release:
    """Nobody holds a value of this owner any more; the table has forgotten it."""

    rref: RRefId


@dataclass(frozen=True, slots=True)
class Confirmed:
    """The owner knows a fork of this user."""

    owner: int
    fork: ForkId


@dataclass(frozen=True, slots=True)
class Failed:
    """A fork of this user is of no use any more."""

    owner: int
    fork: ForkId
    error: PsfError


@dataclass(frozen=True, slots=True)
class Admitted:
    """A reference to a value of this owner has arrived, and counts as a handle from now on."""

    hold: HoldId
    rref: RRefId


@dataclass(frozen=True, slots=True)
class Rejected:
    """A reference that arrived can't be used."""

    hold: HoldId


@dataclass(frozen=True, slots=True)
class Seen:
    """A fork is known to this owner from now on: registered, deleted or refused."""

    fork: ForkId


Action = Send | Ready | Release | Confirmed | Failed | Admitted | Rejected | Seen
