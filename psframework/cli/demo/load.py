"""How much moved, and how busy the shards are: the figures of the dashboard."""

from __future__ import annotations

import asyncio

from psframework.cli.demo.progress import Traffic
from psframework.cluster.handle import Cluster
from psframework.errors import PsfError
from psframework.membership.view import Member
from psframework.parameter_server.client import ParameterServer
from psframework.parameter_server.messages import SHARD_SERVICE
from psframework.proto.v1.parameter_server_pb2 import ListTablesReply, ListTablesRequest
from psframework.rpc.deadline import Deadline
from psframework.wire.lanes import Lane

_SECONDS = 2.0


def traffic(ps: ParameterServer) -> Traffic:
    """Payload bytes that this trainer sent and received so far."""
    stats = ps.stats()
    sent, received = stats.lanes.sent, stats.lanes.received
    return Traffic(
        lanes={lane.value: sent[lane].nbytes + received[lane].nbytes for lane in Lane},
        shards={shard: sum(both) for shard, both in stats.shards.items()},
    )


async def shard_loads(cluster: Cluster) -> dict[str, dict[str, float]]:
    """What each shard says of itself; one that does not answer is left out."""
    shards = cluster.members(role="parameter-server")
    loads = await asyncio.gather(*(_load(cluster, shard) for shard in shards), return_exceptions=True)
    return {shard.name: load for shard, load in zip(shards, loads) if isinstance(load, dict)}


async def _load(cluster: Cluster, shard: Member) -> dict[str, float] | None:
    deadline = Deadline.after(_SECONDS)
    try:
        peer = await cluster.agent.connect(
            shard.addresses,
            name=shard.name,
            role=shard.role,
            incarnation=shard.incarnation,
            deadline=deadline,
        )
        path = f"/{SHARD_SERVICE}/ListTables"
        reply, _ = await peer.call(path, ListTablesRequest(), ListTablesReply, deadline=deadline)
    except PsfError:
        return None
    return {
        "updates": sum(table.updates for table in reply.tables),
        "busy": sum(table.busy_seconds for table in reply.tables),
    }
