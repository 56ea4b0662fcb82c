"""The picture of a context's whole graph: asks every process that calls inside it went to for its part."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from os import PathLike
from typing import Protocol

from psframework.autograd.picture import Drawing, file_of, save
from psframework.autograd.tensor import Tensor
from psframework.dist_autograd import picture
from psframework.dist_autograd.context import Context
from psframework.dist_autograd.ids import ContextId
from psframework.dist_autograd.outline import living, outline
from psframework.dist_autograd.picture import Process
from psframework.errors import ArgumentError, PsfError
from psframework.proto.v1 import dist_autograd_pb2 as pb
from psframework.rpc.compute import compute
from psframework.rpc.deadline import Deadline


class Home(Protocol):
    """This process, and its way to others."""

    @property
    def name(self) -> str: ...
    def outline_of(
        self, name: str, id: ContextId, limit: int, deadline: Deadline
    ) -> asyncio.Future[pb.OutlineReply]: ...


async def draw(
    home: Home,
    context: Context,
    path: str | PathLike[str] | None,
    roots: Tensor | Sequence[Tensor] | None,
    names: Mapping[str, Tensor] | Iterable[tuple[str, Tensor]],
    limit: int,
    deadline: Deadline,
) -> Drawing:
    """As `DistContext.draw`."""
    file_of(path)  # before others are asked
    listed = [roots] if isinstance(roots, Tensor) else roots
    if listed is not None and not all(isinstance(root, Tensor) and root.requires_grad for root in listed):
        raise ArgumentError("draw: a root must be a tensor that requires grad: nothing else has a graph")
    pairs = names.items() if isinstance(names, Mapping) else names
    own = await compute(_own, context, listed, {tensor: name for name, tensor in pairs}, limit)
    context.check()
    processes = await _gather(home, context.id, own, limit, deadline)
    context.check()  # those that were asked may have freed theirs meanwhile
    if not any(process.nodes for process in processes):
        raise ArgumentError("draw: no tensor that requires grad has travelled in this context")
    title = f"context {context.id} of {context.creator}"
    return save(await compute(picture.draw, processes, title), path)


def _own(
    context: Context, roots: Sequence[Tensor] | None, names: Mapping[Tensor, str], limit: int
) -> pb.OutlineReply:
    tops = living(context) if roots is None else [root._node or root for root in roots]
    return outline(context, tops, names, limit)


async def _gather(
    home: Home, id: ContextId, own: pb.OutlineReply, limit: int, deadline: Deadline
) -> list[Process]:
    """The parts of all processes, this one's first."""
    found = {home.name: Process(home.name, own.nodes)}
    new = list(own.peers)
    while new := [peer for peer in dict.fromkeys(new) if peer not in found]:
        asked = [home.outline_of(peer, id, limit, deadline) for peer in new]
        replies = await asyncio.gather(*asked, return_exceptions=True)
        peers: list[str] = []
        for peer, reply in zip(new, replies):
            if isinstance(reply, PsfError):
                found[peer] = Process(peer, trouble=str(reply))
            elif isinstance(reply, BaseException):
                raise reply
            elif any(i >= number for number, node in enumerate(reply.nodes) for i in node.inputs):
                found[peer] = Process(peer, trouble="it answered with a graph that can't be read")
            else:
                found[peer] = Process(peer, reply.nodes)
                peers += reply.peers
        new = peers
    return list(found.values())
