"""The graph of a context in one process, as a message: for pictures."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Mapping
from typing import Any, Final

from psframework import backend
from psframework.autograd.draw import arrays_of
from psframework.autograd.node import Node
from psframework.autograd.tensor import Tensor
from psframework.dist_autograd.context import Context
from psframework.dist_autograd.fold import fold
from psframework.dist_autograd.pairs import Received, RecvNode, Sent
from psframework.proto.v1 import dist_autograd_pb2 as pb

Key = Node | Tensor | Received
NAMELESS: Final[Mapping[Tensor, str]] = {}


def outline(
    context: Context,
    tops: Iterable[Node | Tensor] = (),
    names: Mapping[Tensor, str] = NAMELESS,
    limit: int = 0,
) -> pb.OutlineReply:
    """All that led to messages of a context from here, down to leaves and to messages that came.

    The ends of messages are in the order in which these left and came.

    Args:
        context: which.
        tops: what else to show, with all that led to it.
        names: of leaves.
        limit: a larger graph is folded; 0 for none.
    """
    found = _Outline(names)
    ends: list[Sent | Received] = [*tuple(context.sent.values()), *tuple(context.received.values())]
    for message in sorted(ends, key=_order):
        found.add_end(message)
    for top in tops:
        found.add(top)
    if 0 < limit < len(found.nodes):
        nodes = fold(found.nodes)
    else:
        nodes = found.nodes
        for key, node in zip(found.index, nodes):
            if isinstance(key, Node) and not node.HasField("message"):
                node.nbytes = sum(array.nbytes for array in arrays_of(key))
    return pb.OutlineReply(nodes=nodes, peers=tuple(context.peers))


def living(context: Context) -> list[Node]:
    """Nodes of this process that hang on messages of a context.

    No node knows what uses it, so they are looked for among all objects.
    """
    nodes: list[Node] = [each for each in gc.get_objects() if issubclass(type(each), Node)]
    found = dict.fromkeys(sent.node for sent in tuple(context.sent.values()))
    for node in sorted(nodes, key=lambda node: node.order):
        if isinstance(node, RecvNode):
            if node.message.context is context:
                found[node] = None
        elif any(edge in found for edge in node.edges):
            found[node] = None
    return list(found)


class _Outline:
    def __init__(self, names: Mapping[Tensor, str]) -> None:
        self.nodes: list[pb.GraphNode] = []
        self.index: dict[Key, int] = {}
        self._names = names

    def add(self, top: Key) -> None:
        """Adds a node and all below it, inputs first."""
        stack: list[tuple[Key, list[Key] | None]] = [(_key(top), None)]
        while stack:
            key, below = stack.pop()
            if key in self.index:
                continue
            if below is None:
                below = _below(key)  # once: the node of a message that is being sent has more later
                stack.append((key, below))
                stack += [(edge, None) for edge in below if edge not in self.index]
                continue
            self.index[key] = len(self.nodes)
            made = self._node(key)
            made.inputs.extend(dict.fromkeys(self.index[edge] for edge in below))
            self.nodes.append(made)

    def add_end(self, message: Sent | Received) -> None:
        """Adds an end of a message, and all below it."""
        if isinstance(message, Received):
            self.add(message)
        else:
            self.add(message.node)
            _describe(self.nodes[self.index[message.node]], message, message.peer, len(message.specs))

    def _node(self, key: Key) -> pb.GraphNode:
        if isinstance(key, Received):
            made = pb.GraphNode(name="recv")
            _describe(made, key, key.peer[0], len(key.orders))
            return made
        if isinstance(key, Node):
            return pb.GraphNode(name=key.name)
        label = f"{tuple(key.shape)} {backend.dtype_name(key.dtype)}"
        name = self._names.get(key)
        return pb.GraphNode(name="leaf", label=f"{name}\n{label}" if name else label, nbytes=key.data.nbytes)


def _key(edge: Any) -> Key:
    """What a node is shown as: all tensors of a message as one."""
    return edge.message if isinstance(edge, RecvNode) else edge


def _below(key: Key) -> list[Key]:
    return [_key(edge) for edge in key.edges if edge is not None] if isinstance(key, Node) else []


def _order(message: Sent | Received) -> int:
    if isinstance(message, Sent):
        return message.node.order
    return min(tuple(message.orders.values()), default=0)


def _describe(made: pb.GraphNode, message: Sent | Received, peer: str, tensors: int) -> None:
    made.message.sender, made.message.counter = message.id
    made.label, made.nbytes, made.peer, made.tensors = message.about, message.nbytes, peer, tensors
