"""How the coordinator's state is stored: keys, and bytes made and read by protobuf. No I/O."""

from __future__ import annotations

from psframework.membership.messages import member_from_message, member_to_message
from psframework.membership.store import Write
from psframework.membership.view import Member
from psframework.proto.v1 import coordinator_pb2 as pb

MEMBER_PREFIX = "member/"
INCARNATION_KEY = "meta/incarnation"
VIEW_KEY = "meta/view"


def number_record(key: str, number: int) -> Write:
    """Stores a counter."""
    return Write(key, b"%d" % number)


def read_number(items: list[tuple[str, bytes]]) -> int:
    """Reads what `number_record` stored, from what the store has under its key; 0 if there is nothing."""
    return int(items[0][1]) if items else 0


def member_record(member: Member, nonce: bytes) -> Write:
    """Stores a member."""
    record = pb.MemberRecord(member=member_to_message(member), nonce=nonce)
    return Write(f"{MEMBER_PREFIX}{member.incarnation}", record.SerializeToString())


def read_member(value: bytes) -> tuple[Member, bytes]:
    """Reads (member, nonce) from what `member_record` stored."""
    record = pb.MemberRecord.FromString(value)
    return member_from_message(record.member), record.nonce
