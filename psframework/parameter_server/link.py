"""A client's line to one shard of a model: requests, retries with the same bytes, shared memory or parts."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar

from google.protobuf.message import Message

from psframework.errors import PeerLost, PsfError, ResourceExhausted, WireError
from psframework.membership.client import Membership
from psframework.parameter_server.arena import Arena
from psframework.parameter_server.messages import shard_method
from psframework.parameter_server.partition import Partition
from psframework.parameter_server.registry import ShardRef
from psframework.parameter_server.shard_calls import SHARD_ROLE
from psframework.proto.v1 import parameter_server_pb2 as pb
from psframework.rpc.deadline import Deadline
from psframework.rpc.session.agent import Agent
from psframework.rpc.session.peer import Peer
from psframework.wire.compress import Compression
from psframework.wire.lanes import Lane, LaneStats
from psframework.wire.memory import Buffer, copy_into
from psframework.wire.shm import Segment

log = logging.getLogger(__name__)
M = TypeVar("M", bound=Message)
REDIAL_SECONDS: Final = 2.0
PAUSE_SECONDS: Final = 0.2


class Runtime(Protocol):
    """What a parameter server needs of the cluster that it belongs to."""

    @property
    def membership(self) -> Membership:
        """This process as a member."""
        ...

    @property
    def agent(self) -> Agent:
        """Calls to other members."""
        ...

    @property
    def job(self) -> str:
        """The scope of the names of models."""
        ...


@dataclass(frozen=True, slots=True)
class Gradients:
    """A push as it is frozen until every shard has acknowledged it.

    Args:
        sequence: its number.
        step: of the writer.
        arena: where the gradients are.
        present: partitions that have some.
        kept: the arena stays as it is until the step is closed.
        compression: how they travel.
    """

    sequence: int
    step: int
    arena: Arena
    present: frozenset[int]
    kept: bool
    compression: Compression


@dataclass(slots=True)
class Target:
    """Where a pull puts the values.

    Args:
        arena: the memory.
        side: which of the client's two arenas it is.
        number: of the pull.
    """

    arena: Arena
    side: int
    number: int


class ShardLink:
    """One shard of one model.

    Args:
        runtime: the cluster.
        table: name of the model on the shard.
        writer: our registration.
        shard: which one.
        partitions: of the model on this shard, in order.

    Attributes:
        saved_bytes: what compression kept from travelling.
    """

    def __init__(
        self, runtime: Runtime, table: str, writer: int, shard: ShardRef, partitions: Sequence[Partition]
    ) -> None:
        self.shard = shard
        self.partitions = tuple(partitions)
        self._place = {partition.index: position for position, partition in enumerate(self.partitions)}
        self._runtime = runtime
        self._table = table
        self._writer = writer
        self._segment: Segment | None = None
        self._peer: Peer | None = None
        self._segment_id: int | None = None
        self.saved_bytes = 0
        self._shared = LaneStats()
        self._versions = [[0] * len(self.partitions), [0] * len(self.partitions)]

    @property
    def stats(self) -> LaneStats:
        """Payload traffic with this shard, by lane; values in shared memory count as if they travelled."""
        total = LaneStats()
        total.merge(self._shared)
        if self._peer is not None:
            total.merge(self._peer.stats)
        return total

    async def connect(self, deadline: Deadline) -> bool:
        """Opens the connection; returns whether memory can be shared."""
        return Lane.SHM in (await self._connected(deadline)).lanes

    async def share(self, segment: Segment | None, deadline: Deadline) -> None:
        """Hands over the client's memory; without it, or if the shard refuses, values travel as parts."""
        self._segment = segment
        if self._peer is not None and self._peer.lost is None:
            await self._share(self._peer)
        else:
            await self._connected(deadline)

    def unshare(self) -> None:
        """The shard may let go of the client's memory; nothing is called here any more."""
        number, self._segment, self._segment_id = self._segment_id, None, None
        if self._peer is not None and number is not None:
            self._peer.unshare(number)

    async def initialize(self, arena: Arena, deadline: Deadline) -> None:
        """Sends the first values."""
        request = pb.InitializeRequest(table=self._table, writer=self._writer)
        request.partitions.extend(p.index for p in self.partitions)

        def parts() -> Sequence[Buffer]:
            return () if self._placed(request, arena) else [arena.part(p) for p in self.partitions]

        await self._call("Initialize", request, pb.InitializeReply, deadline, parts)

    async def push(self, gradients: Gradients, committed: int, deadline: Deadline) -> pb.PushReply:
        """Hands over gradients; repeated, it counts once."""
        request = self._push_request(gradients, committed)

        def parts() -> Sequence[Buffer]:
            return self._gradient_parts(request, gradients)

        return await self._call("Push", request, pb.PushReply, deadline, parts)

    async def pull(self, target: Target, step: int, committed: int, deadline: Deadline) -> pb.PullReply:
        """Fills the target with what changed since it was last filled."""
        request = self._pull_request(target, step, committed)

        def parts() -> Sequence[Buffer]:
            self._placed(request, target.arena)
            return ()

        reply = await self._call("Pull", request, pb.PullReply, deadline, parts, self._taker(target))
        self._learn(target, request, reply)
        return reply

    async def push_pull(
        self, gradients: Gradients, committed: int, target: Target, deadline: Deadline
    ) -> pb.PushPullReply:
        """Both in one round trip."""
        request = pb.PushPullRequest(
            push=self._push_request(gradients, committed),
            pull=self._pull_request(target, gradients.step + 1, 0),
        )
        push, pull = request.push, request.pull  # as they are in it, not copies

        def parts() -> Sequence[Buffer]:
            self._placed(pull, target.arena)
            return self._gradient_parts(push, gradients)

        reply = await self._call("PushPull", request, pb.PushPullReply, deadline, parts, self._taker(target))
        self._learn(target, pull, reply.pull)
        return reply

    async def commit(self, committed: int, deadline: Deadline) -> None:
        """Says which steps are complete on every shard."""
        request = pb.CommitRequest(table=self._table, writer=self._writer, committed=committed)
        await self._call("Commit", request, pb.CommitReply, deadline, lambda: ())

    # Requests

    def _push_request(self, gradients: Gradients, committed: int) -> pb.PushRequest:
        return pb.PushRequest(
            table=self._table,
            writer=self._writer,
            sequence=gradients.sequence,
            step=gradients.step,
            committed=committed,
            partitions=[p.index for p in self.partitions if p.index in gradients.present],
            kept=gradients.kept,
        )

    def _gradient_parts(self, request: pb.PushRequest, gradients: Gradients) -> Sequence[Buffer]:
        sent = [p for p in self.partitions if p.index in gradients.present]
        if self._placed(request, gradients.arena):
            self._shared.add_sent(Lane.SHM, sum(p.nbytes for p in sent))
            request.compression = ""  # nothing travels
            return ()
        method = gradients.compression
        if method is Compression.NONE:
            return [gradients.arena.part(p) for p in sent]
        request.compression = method.value
        parts = [gradients.arena.narrowed(p, method) for p in sent]
        self.saved_bytes += sum(p.nbytes - len(part) for p, part in zip(sent, parts))
        return parts

    def _pull_request(self, target: Target, step: int, committed: int) -> pb.PullRequest:
        known = self._versions[target.side]
        # What this pull leaves half done is not known to be anything.
        self._versions[target.side] = [0] * len(known)
        return pb.PullRequest(
            table=self._table,
            writer=self._writer,
            number=target.number,
            step=step,
            committed=committed,
            versions=known,
        )

    def _placed(self, request: pb.InitializeRequest | pb.PushRequest | pb.PullRequest, arena: Arena) -> bool:
        """Says where the values are, if the shard sees our memory."""
        if self._segment_id is None:
            request.ClearField("place")
            return False
        request.place.segment, request.place.offset = self._segment_id, arena.offset
        return True

    def _taker(self, target: Target) -> Callable[[int, memoryview], None]:
        """Puts the parts of a reply, one for each partition of the shard, where they belong."""

        def take(position: int, part: memoryview) -> None:
            if not len(part):
                return
            if position >= len(self.partitions) or len(part) != self.partitions[position].nbytes:
                raise WireError(f"{self.shard.name} sent {len(part)} bytes as partition number {position}")
            copy_into(target.arena.part(self.partitions[position]), part)

        return take

    def _learn(self, target: Target, request: pb.PullRequest, reply: pb.PullReply) -> None:
        versions = list(request.versions)
        place = self._place
        for index, version in zip(reply.partitions, reply.versions):
            versions[place[index]] = version
        self._versions[target.side] = versions
        if request.HasField("place"):
            self._shared.add_received(
                Lane.SHM, sum(self.partitions[place[i]].nbytes for i in reply.partitions)
            )

    # Connection

    async def _call(
        self,
        method: str,
        request: Message,
        reply_type: type[M],
        deadline: Deadline,
        parts: Callable[[], Sequence[Buffer]],
        on_part: Callable[[int, memoryview], None] | None = None,
    ) -> M:
        """Calls until it is answered: a shard that lives answers a repetition as it answered the first."""
        while True:
            peer = await self._connected(deadline)
            try:
                reply, _ = await peer.call(
                    shard_method(method),
                    request,
                    reply_type,
                    parts=parts(),
                    deadline=deadline,
                    on_part=on_part,
                )
                return reply
            except ResourceExhausted as error:
                if not 0 < error.retry_after < deadline.remaining():
                    raise
                await asyncio.sleep(error.retry_after)
            except PeerLost as error:
                if peer.lost is None and error.reason != "lease":
                    raise
                self._check_member(error)
                if peer.lost is None:  # the shard's own lease ran out for now
                    await asyncio.sleep(min(PAUSE_SECONDS, deadline.remaining()))
                log.info("%s: %s is repeated: %s", self._table, method, error)

    async def _connected(self, deadline: Deadline) -> Peer:
        if self._peer is not None and self._peer.lost is None:
            return self._peer
        while True:
            soon = min(deadline, Deadline.after(REDIAL_SECONDS))
            try:
                peer = await self._runtime.agent.connect(
                    self.shard.addresses,
                    name=self.shard.name,
                    role=SHARD_ROLE,
                    incarnation=self.shard.incarnation,
                    deadline=soon,
                )
            except PeerLost as error:
                self._check_member(error)
                if deadline.expired:
                    raise
                await asyncio.sleep(min(PAUSE_SECONDS, deadline.remaining()))
            else:
                await self._share(peer)
                return peer

    async def _share(self, peer: Peer) -> None:
        if self._peer is not None and self._peer is not peer:
            self._shared.merge(self._peer.stats)
        self._peer, self._segment_id = peer, None
        if self._segment is None or Lane.SHM not in peer.lanes:
            return
        try:
            self._segment_id = await peer.share(self._segment)
        except PeerLost:
            raise
        except PsfError as error:
            log.warning("%s: values travel to %s by other lanes: %s", self._table, self.shard.name, error)

    def _check_member(self, error: PeerLost) -> None:
        """Raises if the shard is gone for good: there is nobody to repeat a call to."""
        member = self._runtime.membership.find(self.shard.name)
        if member is None or member.incarnation != self.shard.incarnation:
            raise PeerLost(
                f"shard {self.shard.name} is gone, and with it its part of {self._table!r}: {error}",
                peer=self.shard.name,
                reason=error.reason,
                may_have_run=error.may_have_run,
            ) from None
