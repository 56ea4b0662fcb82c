"""Where members are: what calls by name need to know of the membership."""

from __future__ import annotations

import difflib
from collections import OrderedDict
from typing import Any, Final

from psframework.errors import NotRegistered, PeerLost
from psframework.membership.client import Membership
from psframework.membership.lease import Reason
from psframework.membership.view import Member, MemberState
from psframework.rpc.functions.remote_client import target
from psframework.rpc.functions.routes import Address

LISTENS, HERE = "listens", "here"  # label of a member that listens on loopback because nobody said where
REMEMBERED: Final = 4096  # members that are gone


class Directory:
    """Finds members by name.

    Args:
        membership: this process's.
    """

    def __init__(self, membership: Membership) -> None:
        self._membership = membership
        self._gone: OrderedDict[str, Reason] = OrderedDict()
        self._newest_gone = 0
        membership.on_lost(self._remember)

    def address_of(self, to: Any, /) -> Address:
        """Where the member is that a name, a member or an RRef stands for.

        Raises:
            NotRegistered: no such member was ever here; the message lists near names.
            PeerLost: it was here, and is gone; or it is stalled, and may come back.
        """
        name = target(to)[0]
        member = self._membership.find(name)
        if member is not None:
            if member.state is MemberState.STALLED:
                raise PeerLost(
                    f"{name} is stalled: its event loop has not turned for long",
                    peer=name,
                    reason="stalled",
                    may_have_run=False,
                )
            return Address(self._reachable(member), member.role, member.incarnation)
        gone = self._gone.get(name)
        if gone is not None:
            raise PeerLost(
                f"{name} is gone ({gone.value}), and has not come back",
                peer=name,
                reason="closed" if gone is Reason.LEFT else gone.value,
                may_have_run=False,
            )
        names = [each.name for each in self._membership.members()]
        near = difflib.get_close_matches(name, names, n=3) or sorted(names)[:10]
        raise NotRegistered(f"no member {name!r} in this cluster; there are {', '.join(near)}")

    def has_ended(self, incarnation: int, /) -> bool:
        """Whether the view says that this life of a member is over; False too if it does not know.

        Members join in the order of their incarnations: one that is missing, though newer ones were seen, is
        gone, also if it left before this process came.
        """
        view = self._membership.view
        newest = view.members[-1].incarnation if view.members else 0
        return view.get(incarnation) is None and incarnation <= max(newest, self._newest_gone)

    def listens(self) -> str:
        """Who can dial this process: nobody (""), those of its machine (its name), or everybody ("*")."""
        own = self._membership.member
        if not own.addresses:
            return ""
        return own.labels.get("host", "") if own.labels.get(LISTENS) == HERE else "*"

    def _reachable(self, member: Member) -> tuple[str, ...]:
        """Its addresses, unless it listens only for those who are on its own machine, and we are not."""
        labels, own = member.labels, self._membership.member.labels
        if labels.get(LISTENS) == HERE and labels.get("host") != own.get("host"):
            return ()
        return member.addresses

    def _remember(self, member: Member, reason: Reason) -> None:
        if reason is Reason.STALLED:
            return  # it is still a member, and may come back
        self._newest_gone = max(self._newest_gone, member.incarnation)
        self._gone[member.name] = reason
        self._gone.move_to_end(member.name)
        while len(self._gone) > REMEMBERED:
            self._gone.popitem(last=False)
