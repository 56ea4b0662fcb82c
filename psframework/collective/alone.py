"""The transport of a group with one member: every operation is the identity."""

from __future__ import annotations

from psframework.collective.descriptor import Operation, check_agreement
from psframework.collective.work import Work
from psframework.errors import CollectiveMismatch


class Alone:
    """Implements Transport for world size 1.

    Args:
        group: its name, for messages.
        member: the only member's name.
    """

    name = "alone"
    lives_on = True

    def __init__(self, group: str, member: str) -> None:
        self._group, self._names = group, {0: member}

    def start(self, work: Work) -> None:
        """Copies what was sent to where the result goes; both may be the same memory."""
        error: CollectiveMismatch | None = None
        if work.descriptor.operation is Operation.REFUSE:
            try:
                check_agreement(self._group, {0: work.descriptor}, self._names)
            except CollectiveMismatch as refused:
                error = refused
        elif work.send is not None and work.receive is not None and work.send is not work.receive:
            work.receive[...] = work.send
        work.done(work, error)

    def abort(self, error: BaseException) -> None:
        """Nobody waits: operations end before `start` returns."""

    async def close(self) -> None:
        """Nothing to give back."""
