"""Messages carry everything, in both ways, also through bytes."""

from psframework.membership.keyvalue import KeyChanges, KeyEntry
from psframework.membership.lease import Reason
from psframework.membership.messages import (
    changes_to_message,
    delta_from_message,
    delta_to_message,
    entry_from_message,
    entry_to_message,
    member_from_message,
    member_to_message,
    view_to_message,
)
from psframework.membership.view import Delta, Departure, Member, MemberState, View
from psframework.proto.v1 import coordinator_pb2 as pb

LIVE = Member("w", "worker", "job", 2**63, ("h:1",), 3.5, labels={"pid": "9"})
STALLED = Member("x", "worker", incarnation=3, state=MemberState.STALLED)


def test_member() -> None:
    for member in (LIVE, STALLED):
        read = member_from_message(pb.Member.FromString(member_to_message(member).SerializeToString()))
        assert read == member and read.labels == member.labels


def test_a_state_of_a_newer_version_reads_as_live() -> None:
    assert member_from_message(pb.Member(name="w", state=99)).state is MemberState.LIVE  # type: ignore[arg-type]


def test_delta() -> None:
    reasons = [reason for reason in Reason if reason is not Reason.STALLED]
    delta = Delta(5, (LIVE,), tuple(Departure(STALLED, reason) for reason in reasons))
    message = pb.WatchViewResponse.FromString(delta_to_message(9, delta).SerializeToString())
    assert message.term == 9 and delta_from_message(View(), message) == delta


def test_whole_view() -> None:
    view = View(5, [LIVE])
    message = view_to_message(9, view)
    known = View(2, [STALLED])
    assert known.apply(delta_from_message(known, message)).members == view.members


def test_keys() -> None:
    entry = KeyEntry("k", b"\x00", 5, 6, 7)
    assert entry_from_message(entry_to_message(entry)) == entry
    message = changes_to_message(3, KeyChanges(9, complete=True, written=(entry,), deleted=("x",)))
    assert (message.term, message.revision, message.complete) == (3, 9, True)
    assert entry_from_message(message.written[0]) == entry and list(message.deleted) == ["x"]
