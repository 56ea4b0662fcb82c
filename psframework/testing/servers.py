"""A parameter server in one process, over real sockets: coordinator, keeper, shards, trainers to connect."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

from psframework.cluster.agent import tell_losses
from psframework.cluster.late import LateHandlers
from psframework.membership.client import JoinRequest, Membership
from psframework.membership.coordinator import Coordinator
from psframework.membership.servicer import CoordinatorServicer
from psframework.membership.store import MemoryStore, Store
from psframework.parameter_server.keeper import Keeper
from psframework.parameter_server.keeper_servicer import KeeperServicer
from psframework.parameter_server.servicer import ShardServicer
from psframework.proto.v1.coordinator_pb2_grpc import add_CoordinatorServiceServicer_to_server
from psframework.proto.v1.parameter_server_pb2_grpc import add_ModelServiceServicer_to_server
from psframework.rpc.call import PeerInfo
from psframework.rpc.limits import AgentOptions
from psframework.rpc.security.credentials import Security
from psframework.rpc.serve import ServeOptions, serve
from psframework.rpc.session.agent import Agent
from psframework.wire.lanes import Lane, available

QUIET = ServeOptions(announce=False, drain_seconds=0.2)
PLAINTEXT = Security.plaintext()


@dataclass
class Trainer:
    """A member that can open models.

    Attributes:
        membership, agent, job: what the client needs of a cluster.
    """

    membership: Membership
    agent: Agent
    job: str = "default"


@dataclass
class Servers:
    """The servers.

    Attributes:
        address: of the coordinator.
        keeper: of models.
        shards: by name.
        lanes: that trainers and shards offer.
    """

    address: str
    coordinator: Coordinator
    keeper: Keeper
    lanes: frozenset[Lane]
    shards: dict[str, ShardServicer] = field(default_factory=dict)

    @asynccontextmanager
    async def trainer(self, name: str | None = None, lease_s: float = 5.0) -> AsyncIterator[Trainer]:
        """A trainer of its own."""
        async with AsyncExitStack() as stack:
            join = JoinRequest("trainer", name, "default", (), lease_s)
            membership = await stack.enter_async_context(Membership.join([self.address], join, PLAINTEXT))
            agent = await stack.enter_async_context(_agent(membership, self.lanes))
            yield Trainer(membership, agent)


def _agent(membership: Membership, lanes: frozenset[Lane], *services: ShardServicer) -> Agent:
    member = membership.member
    info = PeerInfo(member.name, member.role, member.job, member.incarnation)
    agent = Agent(info, security=PLAINTEXT, services=services, options=AgentOptions(lanes=lanes))
    tell_losses(membership, agent)
    return agent


@asynccontextmanager
async def servers(
    shards: int = 1,
    *,
    lanes: frozenset[Lane] | None = None,
    memory_limit: int | None = None,
    store: Store | None = None,
) -> AsyncIterator[Servers]:
    """Starts them.

    Args:
        shards: how many; named parameter-server-0 ...
        lanes: to offer; None: all.
        memory_limit: of each shard, in bytes.
        store: of the coordinator.
    """
    offered = available() if lanes is None else lanes
    async with AsyncExitStack() as stack:
        coordinator = await stack.enter_async_context(Coordinator(store or MemoryStore()))
        keeper = await stack.enter_async_context(Keeper(coordinator, PLAINTEXT))
        servicers: list[tuple[Callable[..., None], object]] = [
            (add_CoordinatorServiceServicer_to_server, CoordinatorServicer(coordinator)),
            (add_ModelServiceServicer_to_server, KeeperServicer(keeper)),
        ]
        front = await stack.enter_async_context(
            serve([], servicers=servicers, bind="127.0.0.1:0", security=PLAINTEXT, options=QUIET)
        )
        made = Servers(front.address, coordinator, keeper, offered)
        for _ in range(shards):
            await _shard(stack, made, memory_limit)
        yield made


async def _shard(stack: AsyncExitStack, made: Servers, memory_limit: int | None) -> None:
    servicer = ShardServicer(memory_limit)
    late = LateHandlers()
    server = await stack.enter_async_context(
        serve([late], bind="127.0.0.1:0", security=PLAINTEXT, options=QUIET)
    )
    join = JoinRequest("parameter-server", None, "", (server.address,))
    membership = await stack.enter_async_context(Membership.join([made.address], join, PLAINTEXT))
    agent = await stack.enter_async_context(_agent(membership, made.lanes, servicer))
    agent.listen(server.host)
    late.handlers = agent.handlers()
    made.shards[membership.member.name] = servicer
