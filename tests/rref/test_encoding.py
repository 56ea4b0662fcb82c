"""Messages about references survive the wire."""

import pytest

from psframework.errors import DeadlineExceeded, WireError
from psframework.proto.v1.rref_pb2 import ReferenceMessage
from psframework.rref.encoding import from_message, to_message, to_messages
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

FORK, RREF, HOLD = ForkId(2**63, 7), RRefId(3, 2**64 - 1), HoldId(5, 9)


@pytest.mark.parametrize(
    "message",
    [
        Register(FORK, RREF, ForkId(1, 1), HOLD),
        Register(FORK, RREF, None, HOLD),
        Registered(FORK),
        Refused(FORK),
        Delete(FORK),
        Deleted(FORK),
        Unhold(HOLD),
        Unheld(HOLD),
        Ask(HOLD),
        NotHeld(HOLD),
    ],
)
def test_there_and_back(message: Message) -> None:
    data = to_message(message).SerializeToString()
    assert from_message(ReferenceMessage.FromString(data)) == message


def test_errors_travel() -> None:
    (message,) = to_messages([Break(FORK, RREF, DeadlineExceeded("too slow"))])
    back = from_message(message)
    assert isinstance(back, Break)
    assert isinstance(back.error, DeadlineExceeded)
    assert str(back.error) == "too slow"


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(WireError, match="unknown kind"):
        from_message(ReferenceMessage())
