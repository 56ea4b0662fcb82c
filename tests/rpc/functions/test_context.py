"""What a remote function can ask about its call."""

import contextvars

import pytest

from psframework.errors import ArgumentError
from psframework.rpc.call import PeerInfo
from psframework.rpc.deadline import Deadline
from psframework.rpc.functions.context import Caller, Running, current_caller, enter, running_deadline


def test_inside_and_outside() -> None:
    with pytest.raises(ArgumentError, match="no remote function runs here"):
        current_caller()
    assert running_deadline() is Deadline.NEVER
    deadline = Deadline.after(5)
    caller = Caller(PeerInfo("ann", "trainer", "job", 1), {"a": "b"})

    def inside() -> None:
        enter(Running(caller, deadline))
        assert current_caller() is caller and running_deadline() is deadline
        assert (caller.name, caller.role, caller.metadata) == ("ann", "trainer", {"a": "b"})

    contextvars.copy_context().run(inside)
    assert running_deadline() is Deadline.NEVER


def test_what_a_function_leaves_behind_is_bound_no_more() -> None:
    caller = Caller(PeerInfo("ann", "trainer", "job", 1))
    running, late = Running(caller, Deadline.after(5)), Running(caller, Deadline.after(0))
    for each in (running, late):
        each.over()
    assert running.deadline is Deadline.NEVER
    assert late.deadline.expired
