"""Messages about references as protobuf messages, and back."""

from __future__ import annotations

from collections.abc import Iterable

from psframework.errors import WireError
from psframework.proto.v1 import rref_pb2 as pb
from psframework.rpc.status import detail_to_error, error_to_detail
from psframework.rref.ids import ForkId, HoldId, RRefId
from psframework.rref.messages import (
    Ask,
    Break,
    Delete,
    Deleted,
    Message,
    NotHeld,
    Refused,
    Register,
    Registered,
    Unheld,
    Unhold,
)


def rref_id(message: pb.RRefId) -> RRefId:
    """The id of a message."""
    return RRefId(message.worker, message.counter)


def fork_id(message: pb.ForkId) -> ForkId:
    """The id of a message."""
    return ForkId(message.holder, message.counter)


def hold_id(message: pb.HoldId) -> HoldId:
    """The id of a message."""
    return HoldId(message.sender, message.counter)


def rref_message(rref: RRefId) -> pb.RRefId:
    """The message of an id."""
    return pb.RRefId(worker=rref.worker, counter=rref.counter)


def fork_message(fork: ForkId) -> pb.ForkId:
    """The message of an id."""
    return pb.ForkId(holder=fork.holder, counter=fork.counter)


def hold_message(hold: HoldId) -> pb.HoldId:
    """The message of an id."""
    return pb.HoldId(sender=hold.sender, counter=hold.counter)


def to_message(message: Message) -> pb.ReferenceMessage:
    """One message about references, for the wire."""
    made = pb.ReferenceMessage()
    match message:
        case Register(fork, rref, parent, hold):
            made.register.fork.CopyFrom(fork_message(fork))
            made.register.rref.CopyFrom(rref_message(rref))
            made.register.hold.CopyFrom(hold_message(hold))
            if parent is not None:
                made.register.parent.CopyFrom(fork_message(parent))
        case Break(fork, rref, error):
            made.broken.fork.CopyFrom(fork_message(fork))
            made.broken.rref.CopyFrom(rref_message(rref))
            made.broken.error.CopyFrom(error_to_detail(error))
        case Refused(fork):
            made.refused.CopyFrom(fork_message(fork))
        case Delete(fork):
            made.delete.CopyFrom(fork_message(fork))
        case Registered(fork):
            made.registered.CopyFrom(fork_message(fork))
        case Deleted(fork):
            made.deleted.CopyFrom(fork_message(fork))
        case Unhold(hold):
            made.unhold.CopyFrom(hold_message(hold))
        case Unheld(hold):
            made.unheld.CopyFrom(hold_message(hold))
        case Ask(hold):
            made.ask.CopyFrom(hold_message(hold))
        case NotHeld(hold):
            made.not_held.CopyFrom(hold_message(hold))
    return made


def from_message(message: pb.ReferenceMessage) -> Message:
    """The opposite; WireError for a kind of a newer version."""
    match message.WhichOneof("kind"):
        case "register":
            new = message.register
            parent = fork_id(new.parent) if new.HasField("parent") else None
            return Register(fork_id(new.fork), rref_id(new.rref), parent, hold_id(new.hold))
        case "broken":
            broken = message.broken
            return Break(fork_id(broken.fork), rref_id(broken.rref), detail_to_error(broken.error))
        case "refused":
            return Refused(fork_id(message.refused))
        case "delete":
            return Delete(fork_id(message.delete))
        case "registered":
            return Registered(fork_id(message.registered))
        case "deleted":
            return Deleted(fork_id(message.deleted))
        case "unhold":
            return Unhold(hold_id(message.unhold))
        case "unheld":
            return Unheld(hold_id(message.unheld))
        case "ask":
            return Ask(hold_id(message.ask))
        case "not_held":
            return NotHeld(hold_id(message.not_held))
    raise WireError("a message about references of an unknown kind")


def to_messages(messages: Iterable[Message]) -> list[pb.ReferenceMessage]:
    """Many messages, for the wire."""
    return [to_message(message) for message in messages]
