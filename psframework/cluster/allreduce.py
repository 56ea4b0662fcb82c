"""What the allreduce service's process is made of: one typed service that is told which members are lost."""

from __future__ import annotations

from psframework.cluster.service import Parts
from psframework.cluster.settings import AllreduceSettings
from psframework.collective.central_servicer import AllreduceServicer
from psframework.membership.lease import Reason
from psframework.membership.view import Member
from psframework.rpc.session.agent import Agent


async def build(parts: Parts[AllreduceSettings]) -> None:
    """Opens it; in a cluster, it learns from the membership who is lost."""
    servicer = AllreduceServicer(parts.settings.memory_limit)
    await parts.stack.enter_async_context(servicer)
    parts.services.append(servicer)
    parts.on_drain.append(servicer.drain)

    def lost(member: Member, reason: Reason) -> None:
        servicer.lost(member.incarnation, "closed" if reason is Reason.LEFT else str(reason))

    async def joined(agent: Agent) -> None:
        if parts.membership is not None:
            parts.membership.on_lost(lost)

    parts.on_joined.append(joined)
