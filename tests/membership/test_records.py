"""What is stored reads back equal."""

from psframework.membership.records import (
    MEMBER_PREFIX,
    member_record,
    number_record,
    read_member,
    read_number,
)
from psframework.membership.view import Member


def test_member() -> None:
    member = Member("w", "worker", "job", 7, ("h:1", "h:2"), 3.5, labels={"pid": "9"})
    write = member_record(member, b"nonce")
    assert write.key == f"{MEMBER_PREFIX}7" and write.value is not None
    read, nonce = read_member(write.value)
    assert read == member and read.labels == member.labels and nonce == b"nonce"


def test_number() -> None:
    write = number_record("meta/view", 2**70)
    assert write.value is not None
    assert read_number([(write.key, write.value)]) == 2**70
    assert read_number([]) == 0
