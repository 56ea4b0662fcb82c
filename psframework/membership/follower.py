"""Follows the cluster's view over broken streams and restarted coordinators."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

from psframework.errors import Evicted, PsfError, StaleTerm
from psframework.membership.lease import Reason
from psframework.membership.line import FIRST_PAUSE, LONGEST_PAUSE, Line
from psframework.membership.messages import delta_from_message
from psframework.membership.view import Delta, Member, MemberState, View
from psframework.proto.v1 import coordinator_pb2 as pb

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class FollowerHooks:
    """What a follower tells, on the loop.

    Args:
        changed: a new view is there.
        lost: a member departed or stalls.
        evicted: our own incarnation was fenced.
        broken: the stream closed; it will be opened again.
    """

    changed: Callable[[View], None]
    lost: Callable[[Member, Reason], None]
    evicted: Callable[[Evicted], None]
    broken: Callable[[], None]


class ViewFollower:
    """Keeps `view` up to date while `run` runs.

    Args:
        line: to the coordinator.
        incarnation: the member whose stream this is; 0 for an onlooker.
        hooks: whom to tell.
        view: what is already known.
    """

    def __init__(self, line: Line, incarnation: int, hooks: FollowerHooks, view: View) -> None:
        self.view = view
        self._line = line
        self._incarnation = incarnation
        self._hooks = hooks

    async def run(self) -> None:
        """Follows until cancelled, or until our own incarnation was fenced."""
        pause = FIRST_PAUSE
        while True:
            request = pb.WatchViewRequest(incarnation=self._incarnation)
            try:
                async for message in self._line.stream("WatchView", request, pb.WatchViewResponse):
                    self._apply(delta_from_message(self.view, message))
                    pause = FIRST_PAUSE
            except Evicted as error:
                self._hooks.evicted(error)
                return
            except StaleTerm as error:
                log.warning("the coordinator is stale: %s", error)
            except PsfError as error:
                log.info("lost sight of the coordinator: %s", error)
            self._hooks.broken()
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    def _apply(self, delta: Delta) -> None:
        before, self.view = self.view, self.view.apply(delta)
        self._hooks.changed(self.view)
        lost = [(gone.member, gone.reason) for gone in delta.departed]
        lost += [(member, Reason.STALLED) for member in delta.changed if _newly_stalled(before, member)]
        for member, reason in lost:
            if member.incarnation != self._incarnation:
                self._hooks.lost(member, reason)
            elif reason is not Reason.STALLED:
                self._hooks.evicted(Evicted(f"{member.name} was fenced ({reason}): join again"))


def _newly_stalled(before: View, member: Member) -> bool:
    known = before.get(member.incarnation)
    return member.state is MemberState.STALLED and (known is None or known.state is not MemberState.STALLED)
