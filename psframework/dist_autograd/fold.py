"""Graphs with many nodes, made small: what lies between the same messages becomes one node. No I/O.

Two nodes are *alike* if the same messages lead to them and they lead to the same messages. Whatever lies on a
way between two that are alike is like them, so that folding makes no cycle.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from heapq import heapify, heappop, heappush

from psframework.proto.v1 import dist_autograd_pb2 as pb

End = Callable[[pb.GraphNode], Hashable]
"""Says which ends of messages belong together."""
END = ("send", "recv")
SUMMED = (*END, "leaf")  # operations may keep the same arrays


def message_of(node: pb.GraphNode) -> Hashable:
    """The name of the message that a node is an end of."""
    return node.message.sender, node.message.counter


def fold(nodes: Sequence[pb.GraphNode], end: End = message_of) -> list[pb.GraphNode]:
    """The nodes of one process, those that are alike as one; leaves and freed nodes by themselves.

    Args:
        nodes: inputs before what uses them.
        end: of a "send" or "recv": those for which it is the same are folded too.
    """
    groups: dict[Hashable, list[int]] = {}
    group_of = _keys(nodes, end)
    for number, key in enumerate(group_of):
        groups.setdefault(key, []).append(number)
    inputs = {
        key: dict.fromkeys(group_of[i] for n in members for i in nodes[n].inputs if group_of[i] != key)
        for key, members in groups.items()
    }
    index: dict[Hashable, int] = {}
    folded: list[pb.GraphNode] = []
    for key in _sorted({key: members[0] for key, members in groups.items()}, inputs):
        index[key] = len(folded)
        made = _one([nodes[number] for number in groups[key]])
        del made.inputs[:]
        made.inputs.extend(index[each] for each in inputs[key])
        folded.append(made)
    return folded


def count(node: pb.GraphNode) -> int:
    """How many nodes it stands for."""
    return sum(node.folded.values()) or 1


def is_freed(node: pb.GraphNode) -> bool:
    """Whether a backward has freed it: nothing but leaves and what came has no inputs."""
    return not node.inputs and node.name not in ("leaf", "recv")


def _keys(nodes: Sequence[pb.GraphNode], end: End) -> list[Hashable]:
    """What decides which nodes are alike."""
    used = {i for node in nodes for i in node.inputs}
    bits: dict[Hashable, int] = {}
    ends: list[Hashable] = [None] * len(nodes)
    above, below = [0] * len(nodes), [0] * len(nodes)  # sets of ends that lead here, and that this leads to
    for number, node in enumerate(nodes):
        if node.name in END:
            ends[number] = (node.name, end(node))
        elif number not in used:
            ends[number] = number  # a root
        if ends[number] is not None:
            above[number] = below[number] = bits.setdefault(ends[number], 1 << len(bits))
        for i in node.inputs:
            above[number] |= above[i]
    for number in reversed(range(len(nodes))):
        for i in nodes[number].inputs:
            below[i] |= below[number]
    return [
        (ends[number],)
        if ends[number] is not None
        else (node.name == "leaf", bool(node.inputs), above[number], below[number])
        for number, node in enumerate(nodes)
    ]


def _sorted(
    first: Mapping[Hashable, int], inputs: Mapping[Hashable, Iterable[Hashable]]
) -> Iterator[Hashable]:
    """Inputs before what uses them, otherwise by their first members."""
    uses: dict[Hashable, list[Hashable]] = {}
    waits: dict[Hashable, int] = {}
    for key, below in inputs.items():
        for each in below:
            uses.setdefault(each, []).append(key)
            waits[key] = waits.get(key, 0) + 1
    heap = [(number, key) for key, number in first.items() if key not in waits]
    heapify(heap)
    while heap:
        _, key = heappop(heap)
        yield key
        for use in uses.get(key, ()):
            waits[use] -= 1
            if not waits[use]:
                heappush(heap, (first[use], use))


def _one(members: Sequence[pb.GraphNode]) -> pb.GraphNode:
    made = pb.GraphNode()
    made.CopyFrom(members[0])
    if len(members) == 1:
        return made
    names: Counter[str] = Counter()
    for node in members:
        names.update(node.folded or {node.name: 1})
    made.ClearField("folded")
    made.folded.update(names)
    made.nbytes = sum(node.nbytes for node in members) if made.name in SUMMED else 0
    made.tensors = sum(node.tensors for node in members)
    if made.name not in END:
        made.label = ""
    return made
