"""The graph of a context in one process, as a message: for pictures."""

from __future__ import annotations

from psframework.autograd.node import Node
from psframework.dist_autograd.context import Context
from psframework.dist_autograd.pairs import RecvNode
from psframework.proto.v1 import dist_autograd_pb2 as pb


def outline(context: Context) -> pb.OutlineReply:
    """All that led to messages of a context from here, down to leaves and to messages that came."""
    reply = pb.OutlineReply(peers=context.peers)
    index: dict[object, int] = {}
    for sent in context.sent.values():
        _add(sent.node, reply, index)
        node = reply.nodes[index[sent.node]]
        node.message.sender, node.message.counter = sent.id
        node.nbytes, node.label = sent.nbytes, str(sent)
    return reply


def _add(top: object, reply: pb.OutlineReply, index: dict[object, int]) -> None:
    """Adds a node and all below it, inputs first."""
    stack = [(top, False)]
    while stack:
        key, ready = stack.pop()
        if key in index:
            continue
        edges = [edge for edge in key.edges if edge is not None] if isinstance(key, Node) else []
        if not ready and edges:
            stack.append((key, True))
            stack += [(edge, False) for edge in edges if edge not in index]
            continue
        index[key] = len(reply.nodes)
        made = reply.nodes.add(name=key.name if isinstance(key, Node) else "leaf")
        made.inputs.extend(index[edge] for edge in edges)
        if isinstance(key, RecvNode):
            made.message.sender, made.message.counter = key.message.id
            made.tensor, made.nbytes, made.label = key.index, key.message.nbytes, str(key.message)
        elif not isinstance(key, Node):
            made.shape.extend(key._data.shape)  # type: ignore[attr-defined]
