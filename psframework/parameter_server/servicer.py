"""A shard's service: message, call of the Host, message."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from psframework.errors import (
    NotRegistered,
    PeerLost,
    PermissionDenied,
    ResourceExhausted,
    StaleTerm,
    UnknownTable,
    WireError,
)
from psframework.optim.rule import UpdateRule, rule_from_spec
from psframework.parameter_server.clocks import gate_for
from psframework.parameter_server.host import Host, Push, Waiting
from psframework.parameter_server.messages import (
    SHARD_SERVICE,
    outcome_to_message,
    partition_from_message,
    roster_from_message,
    spec_from_json,
)
from psframework.parameter_server.partition import Partition
from psframework.parameter_server.payload import (
    Part,
    arriving,
    positions_of,
    reply_parts,
    shared_arena,
    source_of,
    stream_parts,
)
from psframework.parameter_server.policy import policy_from_spec
from psframework.parameter_server.registry import wanted_trainers
from psframework.parameter_server.sources import Arena, Source
from psframework.parameter_server.table import Gradient, Pull, Table
from psframework.proto.v1 import parameter_server_pb2 as pb
from psframework.rpc.call import Call
from psframework.rpc.service import Method
from psframework.wire.compress import parse
from psframework.wire.memory import BufferPool

RETRY_SECONDS: Final = 0.05
COORDINATOR: Final = frozenset({"coordinator"})


class ShardServicer:
    """One parameter-server shard.

    Args:
        memory_limit: bytes that tables may take in all: parameters, optimizer state and gradients that
            wait for their step; None: no limit.
        serving: whether this process holds its lease; without it nothing is served.
    """

    name = SHARD_SERVICE

    def __init__(self, memory_limit: int | None = None, serving: Callable[[], bool] = lambda: True) -> None:
        self._limit = memory_limit
        self._serving = serving
        self._hosts: dict[str, Host] = {}
        self._pool = BufferPool()
        self._term = 0

    def methods(self) -> Sequence[Method]:
        """The methods of the service."""
        return (
            Method("Initialize", pb.InitializeRequest, pb.InitializeReply, self.initialize),
            Method("Push", pb.PushRequest, pb.PushReply, self.push),
            Method("Pull", pb.PullRequest, pb.PullReply, self.pull),
            Method("PushPull", pb.PushPullRequest, pb.PushPullReply, self.push_pull),
            Method("Commit", pb.CommitRequest, pb.CommitReply, self.commit),
            Method("ListTables", pb.ListTablesRequest, pb.ListTablesReply, self.list_tables),
            Method("CreateTable", pb.CreateTableRequest, pb.CreateTableReply, self.create_table, COORDINATOR),
            Method(
                "PublishRoster",
                pb.PublishRosterRequest,
                pb.PublishRosterReply,
                self.publish_roster,
                COORDINATOR,
            ),
            Method("FenceWriter", pb.FenceWriterRequest, pb.FenceWriterReply, self.fence_writer, COORDINATOR),
            Method("PauseRounds", pb.PauseRoundsRequest, pb.PauseRoundsReply, self.pause_rounds, COORDINATOR),
            Method("DropTable", pb.DropTableRequest, pb.DropTableReply, self.drop_table, COORDINATOR),
        )

    # For trainers

    async def initialize(self, request: pb.InitializeRequest, call: Call) -> pb.InitializeReply:
        """Sets first values."""
        host = self._host(request.table)
        self._check_writer(host, request.writer, call)
        self._check_initializer(host, request.writer)
        positions = positions_of(host.table, request.partitions)
        place = request.place if request.HasField("place") else None
        source = await source_of(host.table, positions, call, place)
        self._check_initializer(host, request.writer)  # a repetition may have finished while this one came
        await host.initialize(source, positions)
        return pb.InitializeReply()

    async def push(self, request: pb.PushRequest, call: Call) -> pb.PushReply:
        """Takes gradients."""
        host = self._ready(request.table, request.writer, call)
        if request.committed:
            host.commit(request.writer, request.committed)
        outcome = await host.push(self._push(host, request, call), call.deadline)
        return pb.PushReply(outcome=outcome_to_message(outcome), next_step=host.gate.next_step)

    async def pull(self, request: pb.PullRequest, call: Call) -> pb.PullReply:
        """Answers with what changed."""
        host = self._ready(request.table, request.writer, call)
        waiting, part = self._waiting(host, request, call)
        await host.pull(waiting, call.deadline, request.committed)
        reply = _pull_reply(host, waiting, request.committed)
        reply_parts(host.table, waiting.pull, part, call)
        return reply

    async def push_pull(self, request: pb.PushPullRequest, call: Call) -> pb.PushPullReply:
        """Takes gradients, then answers with what changed."""
        push, wanted = request.push, request.pull
        if (push.table, push.writer) != (wanted.table, wanted.writer):
            raise WireError("a push and a pull of different tables or writers in one message")
        host = self._ready(push.table, push.writer, call)
        if push.committed:
            host.commit(push.writer, push.committed)
        waiting, part = self._waiting(host, wanted, call)
        taken = self._push(host, push, call)
        flow = None if part is None else await host.push_pull_flow(taken, waiting, call.deadline)
        if part is not None and flow is not None:
            stream_parts(host.table, waiting.pull, part, flow, call)
            push_reply = pb.PushReply(outcome=pb.OUTCOME_APPLIED, next_step=host.gate.next_step)
            return pb.PushPullReply(push=push_reply, pull=_pull_reply(host, waiting, 0))
        outcome = await host.push_pull(taken, waiting, call.deadline)
        reply = _pull_reply(host, waiting, push.step + 1)
        reply_parts(host.table, waiting.pull, part, call)
        push_reply = pb.PushReply(outcome=outcome_to_message(outcome), next_step=host.gate.next_step)
        return pb.PushPullReply(push=push_reply, pull=reply)

    def commit(self, request: pb.CommitRequest, call: Call) -> pb.CommitReply:
        """Takes the word of a trainer that steps are complete everywhere."""
        host = self._ready(request.table, request.writer, call)
        host.commit(request.writer, request.committed)
        return pb.CommitReply(next_step=host.gate.next_step)

    def list_tables(self, request: pb.ListTablesRequest, call: Call) -> pb.ListTablesReply:
        """Describes what is held here."""
        return pb.ListTablesReply(tables=[_info(name, host) for name, host in sorted(self._hosts.items())])

    # For the coordinator

    def create_table(self, request: pb.CreateTableRequest, call: Call) -> pb.CreateTableReply:
        """Makes room for partitions."""
        self._check_term(request.term)
        old = self._hosts.get(request.table)
        if old is not None and old.creation == request.creation:
            return pb.CreateTableReply()
        if old is not None and old.creation > request.creation:
            raise StaleTerm(f"table {request.table!r} was made anew: {request.creation} is over")
        partitions = [partition_from_message(message) for message in request.partitions]
        rule = rule_from_spec(spec_from_json(request.rule, "update rule"))
        policy = policy_from_spec(spec_from_json(request.policy, "policy"))
        trainers = max(1, wanted_trainers(policy))
        self._check_room(request.table, partitions, rule, trainers)
        gate = gate_for(policy, request.table, single=request.shards == 1)
        try:
            table = Table(partitions, rule)
        except MemoryError:
            wanted = sum(p.nbytes for p in partitions)
            raise ResourceExhausted(
                f"table {request.table!r} has {wanted} bytes here, more than there is memory: add shards"
            ) from None
        gate.publish(roster_from_message(request.roster))
        if old is not None:
            old.drop(UnknownTable(f"table {request.table!r} was made anew: open the parameter server again"))
        self._hosts[request.table] = Host(request.table, table, gate, request.creation)
        return pb.CreateTableReply()

    async def publish_roster(self, request: pb.PublishRosterRequest, call: Call) -> pb.PublishRosterReply:
        """Takes a newer roster."""
        self._check_term(request.term)
        host = self._host(request.table)
        accepted = await host.publish(roster_from_message(request.roster))
        return pb.PublishRosterReply(accepted=accepted, next_step=host.gate.next_step)

    def fence_writer(self, request: pb.FenceWriterRequest, call: Call) -> pb.FenceWriterReply:
        """Refuses a writer."""
        self._check_term(request.term)
        return pb.FenceWriterReply(complete=self._host(request.table).fence(request.writer))

    async def pause_rounds(self, request: pb.PauseRoundsRequest, call: Call) -> pb.PauseRoundsReply:
        """Holds back the next steps."""
        self._check_term(request.term)
        return pb.PauseRoundsReply(next_step=self._host(request.table).pause(request.seconds))

    def drop_table(self, request: pb.DropTableRequest, call: Call) -> pb.DropTableReply:
        """Frees a table."""
        self._check_term(request.term)
        host = self._hosts.get(request.table)
        if host is not None and host.creation == request.creation:
            del self._hosts[request.table]
            host.drop(UnknownTable(f"table {request.table!r} was dropped"))
        return pb.DropTableReply()

    # Checks

    def _host(self, table: str) -> Host:
        host = self._hosts.get(table)
        if host is None:
            raise UnknownTable(
                f"no table {table!r} on this shard: open it first, with cluster.parameter_server(...)"
            )
        return host

    def _ready(self, table: str, writer: int, call: Call) -> Host:
        """The table, for a call that reads or writes parameters."""
        if not self._serving():
            raise PeerLost(
                "this shard's lease ran out: it serves nothing until it is renewed", reason="lease"
            )
        host = self._host(table)
        self._check_writer(host, writer, call)
        if not host.gate.roster.ready:
            raise UnknownTable(f"table {table!r} has no first values yet: its initializer has not finished")
        return host

    def _check_writer(self, host: Host, writer: int, call: Call) -> None:
        """A member may only use its own registrations. Stock stubs have no incarnation to compare."""
        entry = host.gate.roster.find(writer)
        if entry and call.peer.incarnation and entry.incarnation != call.peer.incarnation:
            raise PermissionDenied(
                f"writer {writer} of {host.name!r} is {entry.name!r}, not {call.peer.name!r}"
            )
        if entry is None and writer not in host.gate.roster.readers:
            raise NotRegistered(f"writer {writer} is not registered with {host.name!r}: register first")

    def _check_initializer(self, host: Host, writer: int) -> None:
        roster = host.gate.roster
        if roster.ready or roster.initializer != writer:
            raise StaleTerm(f"writer {writer} does not initialize {host.name!r}")

    def _check_term(self, term: int) -> None:
        if term < self._term:
            raise StaleTerm(f"a message of term {term}; term {self._term} has begun")
        self._term = term

    def _check_room(
        self, name: str, partitions: Sequence[Partition], rule: UpdateRule, trainers: int
    ) -> None:
        if self._limit is None:
            return
        used = sum(h.memory for n, h in self._hosts.items() if n != name)
        values = sum(p.nbytes for p in partitions)
        wanted = values * (1 + len(rule.slots()) + trainers)  # each may have a gradient staged
        if used + wanted > self._limit:
            raise ResourceExhausted(
                f"table {name!r} needs {wanted} bytes here, {used} of {self._limit} are in use: "
                "add shards, or raise --memory-limit"
            )

    def _check_staging(self, host: Host, writer: int, *, copied: bool) -> None:
        if self._limit is None:
            return
        wanted = host.table.needs_room(host.gate.trainer(writer).slot, copied=copied)
        used = sum(h.memory for h in self._hosts.values())
        if wanted and used + wanted > self._limit:
            raise ResourceExhausted(
                f"no room for another gradient of {host.name!r}: {used} of {self._limit} bytes are in use",
                retry_after=RETRY_SECONDS,
            )

    # Payloads

    def _push(self, host: Host, request: pb.PushRequest, call: Call) -> Push:
        positions = positions_of(host.table, request.partitions)
        place = request.place if request.HasField("place") else None
        kept = request.kept or place is None  # what came by itself belongs to us
        compression = parse(request.compression or "none")

        async def receive() -> Gradient:
            if place is None or not kept:
                self._check_staging(host, request.writer, copied=place is not None)
            source = await source_of(host.table, positions, call, place, compression)
            return Gradient(request.writer, request.sequence, source, frozenset(positions))

        come = arriving(host.table, request, positions, call) if place is None else None
        return Push(request.writer, request.sequence, request.step, receive, kept, come, positions)

    def _waiting(self, host: Host, request: pb.PullRequest, call: Call) -> tuple[Waiting, Part | None]:
        """The pull, and where the parts of its reply lie; None if it is written to the caller's memory."""
        table = host.table
        sink: Source | None = None
        part: Part | None = None
        if request.HasField("place"):
            sink = shared_arena(table, request.place, call)
        elif host.gate.stands_still(request.writer):
            part = table.part
        else:
            buffer, offsets = self._pool.take(table.parameter_bytes), table.packed_offsets
            sink = Arena.packed(table.partitions, buffer)

            def part(position: int) -> memoryview:
                return buffer[offsets[position] : offsets[position] + table.partitions[position].nbytes]

        pull = Pull(tuple(request.versions), sink)
        return Waiting(request.writer, request.number, request.step, pull), part


def _pull_reply(host: Host, waiting: Waiting, committed: int) -> pb.PullReply:
    pull = waiting.pull
    reply = pb.PullReply(
        partitions=[host.table.partitions[p].index for p in pull.changed],
        versions=pull.versions,
        next_step=host.gate.next_step,
    )
    entry = host.gate.roster.find(waiting.writer)
    if entry is not None and committed > entry.from_step:
        reply.outcome = outcome_to_message(host.gate.outcome(waiting.writer, committed - 1))
    return reply


def _info(name: str, host: Host) -> pb.TableInfo:
    table = host.table
    return pb.TableInfo(
        table=name,
        partitions=len(table.partitions),
        parameter_bytes=table.parameter_bytes,
        state_bytes=table.state_bytes,
        staged_bytes=table.staged_bytes,
        next_step=host.gate.next_step,
        updates=table.updates,
        pulls=host.pulls,
        busy_seconds=host.busy_seconds,
    )
