"""What of one process's graph takes part in a backward: found by walking it, before anything runs.

A backward begins at roots. Each process walks from there, or from the tensors of messages that it sent and
that turn out to take part, to the leaves and to the messages that tensors came by; those are asked about at
their senders. Every node is walked once, so that loops between processes end (PROTOCOLS 11).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import TYPE_CHECKING

from psframework.autograd.engine import FREED, Key
from psframework.autograd.node import Edge, Node
from psframework.dist_autograd.ids import TensorsId
from psframework.dist_autograd.pairs import Received, RecvNode, Sent
from psframework.errors import AutogradError, ContextMismatch, WireError

if TYPE_CHECKING:
    from psframework.dist_autograd.context import Context

_USERS = ("psframework.autograd.function", "psframework.autograd.record", "psframework.autograd.recompute")
"""Modules with rules that run users' code."""

Asked = dict[Received, set[int]]
"""Messages that take part, with the tensors of them that do."""


class Discovery:
    """One process's part of the sweep.

    Args:
        context: whose backward it is.

    Attributes:
        reached: messages from here that gradients will come for, with their tensors.
        asked: messages to here that gradients will go back for.
        users: whether users' code takes part, a Function or a hook: nobody knows how long it takes.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._seen: set[Node] = set()
        self.reached: dict[Sent, set[int]] = {}
        self.asked: Asked = {}
        self.users = False
        self._names = 0
        self._elements = 0

    @property
    def kind(self) -> Hashable:
        """The same for graphs of the same operations and sizes, as a training loop makes them."""
        return self._names, len(self._seen), self._elements

    def from_roots(self, keys: Iterable[Key]) -> Asked:
        """Walks from the roots; returns what is to be asked about.

        Raises:
            AutogradError: a node was freed by an earlier backward.
            ContextMismatch: a tensor came by a message of another context.
        """
        listed = list(keys)
        self._meet(listed)
        return self._walk(key for key in listed if isinstance(key, Node))

    def from_message(self, id: TensorsId, tensors: Iterable[int]) -> Asked:
        """Walks from tensors of a message that was sent from here; raises as `from_roots`.

        Raises:
            WireError: there is no such message, or no such tensor in it.
        """
        sent = self._context.sent.get(id)
        if sent is None:
            raise WireError(f"no message {id} left this process in {self._context}")
        if sent.node.backward is None:
            raise AutogradError(FREED.format("send"))
        known = self.reached.setdefault(sent, set())
        edges = sent.node.edges
        new = [index for index in tensors if index not in known]
        if not all(0 <= index < len(edges) for index in new):
            raise WireError(f"message {id} has {len(edges)} tensors, and not {new}")
        known.update(new)
        self._meet([edges[index] for index in new])
        return self._walk(edge for index in new if isinstance(edge := edges[index], Node))

    def _walk(self, tops: Iterable[Node]) -> Asked:
        seen, found = self._seen, Asked()
        stack = [node for node in tops if node not in seen]
        seen.update(stack)
        while stack:
            node = stack.pop()
            if node.backward is None:
                raise AutogradError(FREED.format(node.name))
            self._names += hash(node.name)
            if node.hooks is not None or node.backward.__module__ in _USERS:
                self.users = True
            if type(node) is RecvNode:
                self._elements += node.message.nbytes
                self._ask(node, found)
                continue
            self._meet(node.edges)
            for edge in node.edges:
                if isinstance(edge, Node) and edge not in seen:
                    seen.add(edge)
                    stack.append(edge)
        return found

    def _meet(self, edges: Iterable[Edge]) -> None:
        """Takes note of leaves."""
        for edge in edges:
            if edge is not None and not isinstance(edge, Node):
                self._elements += edge._data.size
                if edge.leaf_hooks:
                    self.users = True

    def _ask(self, node: RecvNode, found: Asked) -> None:
        message = node.message
        if message.context is not self._context:
            raise ContextMismatch(
                f"{message}: it belongs to {message.context}, but this is a backward of {self._context}: use "
                "its result inside the context in which it was asked for, or detach() it"
            )
        self.asked.setdefault(message, set()).add(node.index)
        found.setdefault(message, set()).add(node.index)
