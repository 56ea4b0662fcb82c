"""The agent of a member: calls to and from it, and the news of who is lost.

It is apart from `connect`, since services that keep no values of others need nothing of what a client can do.
"""

from __future__ import annotations

from collections.abc import Sequence

from psframework.cluster.settings import Settings
from psframework.membership.client import Membership
from psframework.membership.lease import Reason
from psframework.membership.view import Member
from psframework.rpc.call import PeerInfo
from psframework.rpc.limits import AgentOptions
from psframework.rpc.security.credentials import Security
from psframework.rpc.service import Service
from psframework.rpc.session.agent import Agent
from psframework.wire.lanes import offered


def make_agent(
    membership: Membership, security: Security, settings: Settings, services: Sequence[Service] = ()
) -> Agent:
    """The agent of a member, which learns from the membership who is lost."""
    member = membership.member
    identity = PeerInfo(member.name, member.role, member.job, member.incarnation)
    options = AgentOptions(lanes=offered(settings.lanes))
    agent = Agent(identity, security=security, services=services, options=options)
    tell_losses(membership, agent)
    return agent


def tell_losses(membership: Membership, agent: Agent) -> None:
    """Tells the agent of a member which others are dead, and which are stalled and may come back."""

    def tell(member: Member, reason: Reason) -> None:
        name, incarnation = member.name, member.incarnation
        if reason is Reason.STALLED:
            agent.stalled(name, incarnation, lambda: membership.is_stalled(incarnation))
        else:
            agent.lost(name, incarnation, str(reason))

    membership.on_lost(tell)
