"""What a remote function can ask about the call that it runs for."""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import Context, ContextVar, copy_context
from dataclasses import dataclass, field

from psframework.errors import ArgumentError
from psframework.rpc.call import PeerInfo
from psframework.rpc.deadline import Deadline


@dataclass(slots=True)  # not frozen: one of each is made for every call, and that would double its cost
class Caller:
    """Who made a call, and what was said with it.

    Attributes:
        peer: the caller, as its connection proved it.
        metadata: what the caller passed as `metadata`.
    """

    peer: PeerInfo
    metadata: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Name of the caller."""
        return self.peer.name

    @property
    def role(self) -> str:
        """Role of the caller, such as "trainer"."""
        return self.peer.role


@dataclass(slots=True)
class Running:
    """The call that the code at hand runs for.

    Attributes:
        caller: who made it.
        deadline: when the caller gives up; calls made from here inherit it.
    """

    caller: Caller
    deadline: Deadline

    def over(self) -> None:
        """The function has ended. Tasks that it left behind go on for no call, so none bounds theirs.

        One that ended because nobody waits any more bounds them all the same: they were part of that work.
        """
        if not self.deadline.expired:
            self.deadline = Deadline.NEVER


_running: ContextVar[Running | None] = ContextVar("psframework_running", default=None)


def enter(running: Running) -> None:
    """From here on, in this context, code runs for that call."""
    _running.set(running)


def leave() -> None:
    """From here on, in this context, code runs for no call in particular."""
    _running.set(None)


def nobodys() -> Context:
    """This context without the call: its cluster, but not its caller and deadline."""
    copy = copy_context()
    copy.run(leave)
    return copy


def current_caller() -> Caller:
    """Who called the remote function that runs here, and with which metadata.

    Raises:
        ArgumentError: no remote function runs here.
    """
    running = _running.get()
    if running is None:
        raise ArgumentError("no remote function runs here: ask inside a function that a peer has called")
    return running.caller


def runs_for_a_call() -> bool:
    """Whether the code at hand runs in a function that a peer has called."""
    return _running.get() is not None


def running_deadline() -> Deadline:
    """When whoever called the remote function that runs here gives up; NEVER outside of one."""
    running = _running.get()
    return Deadline.NEVER if running is None else running.deadline
