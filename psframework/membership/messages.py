"""Members, views and keys as protobuf messages, and back. No I/O."""

from __future__ import annotations

from psframework.membership.keyvalue import KeyChanges, KeyEntry
from psframework.membership.lease import Reason
from psframework.membership.view import Delta, Departure, Member, MemberState, View
from psframework.proto.v1 import coordinator_pb2 as pb

_STATES = {MemberState.LIVE: pb.MEMBER_STATE_LIVE, MemberState.STALLED: pb.MEMBER_STATE_STALLED}
_STATES_BACK = {number: state for state, number in _STATES.items()}
_REASONS = {
    Reason.LEFT: pb.DEPARTURE_REASON_LEFT,
    Reason.LEASE: pb.DEPARTURE_REASON_LEASE,
    Reason.CLOSED: pb.DEPARTURE_REASON_CLOSED,
    Reason.REPLACED: pb.DEPARTURE_REASON_REPLACED,
}
_REASONS_BACK = {number: reason for reason, number in _REASONS.items()}


def member_to_message(member: Member) -> pb.Member:
    """Returns a member as a message."""
    return pb.Member(
        name=member.name,
        role=member.role,
        job=member.job,
        incarnation=member.incarnation,
        addresses=member.addresses,
        lease_seconds=member.lease_s,
        state=_STATES[member.state],
        labels=dict(member.labels),
    )


def member_from_message(message: pb.Member) -> Member:
    """Returns the member of a message; a state of a newer version reads as live."""
    return Member(
        message.name,
        message.role,
        message.job,
        message.incarnation,
        tuple(message.addresses),
        message.lease_seconds,
        _STATES_BACK.get(message.state, MemberState.LIVE),
        dict(message.labels),
    )


def delta_to_message(term: int, delta: Delta) -> pb.WatchViewResponse:
    """Returns a change of the view as a message."""
    return pb.WatchViewResponse(
        term=term,
        number=delta.number,
        changed=map(member_to_message, delta.changed),
        departed=[
            pb.Departure(member=member_to_message(gone.member), reason=_REASONS[gone.reason])
            for gone in delta.departed
        ],
    )


def view_to_message(term: int, view: View) -> pb.WatchViewResponse:
    """Returns a whole view as a message."""
    return pb.WatchViewResponse(
        term=term, number=view.number, complete=True, changed=map(member_to_message, view.members)
    )


def delta_from_message(known: View, message: pb.WatchViewResponse) -> Delta:
    """Returns what a message changes for somebody who has `known`."""
    members = tuple(map(member_from_message, message.changed))
    if message.complete:
        return known.changes_to(View(message.number, members))
    departed = tuple(
        Departure(member_from_message(gone.member), _REASONS_BACK.get(gone.reason, Reason.LEASE))
        for gone in message.departed
    )
    return Delta(message.number, members, departed)


def entry_to_message(entry: KeyEntry) -> pb.KeyEntry:
    """Returns a key with its value as a message."""
    return pb.KeyEntry(
        key=entry.key,
        value=entry.value,
        revision=entry.revision,
        writer=entry.writer,
        sequence=entry.sequence,
    )


def entry_from_message(message: pb.KeyEntry) -> KeyEntry:
    """Returns the key and value of a message."""
    return KeyEntry(message.key, message.value, message.revision, message.writer, message.sequence)


def changes_to_message(term: int, changes: KeyChanges) -> pb.WatchKeysResponse:
    """Returns what happened to keys as a message."""
    return pb.WatchKeysResponse(
        term=term,
        revision=changes.revision,
        complete=changes.complete,
        written=map(entry_to_message, changes.written),
        deleted=changes.deleted,
    )
