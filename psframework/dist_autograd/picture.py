"""The picture of a graph over several processes: a lane for each, data flows down. No I/O.

It is made of what each process has said of its part.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise, permutations
from textwrap import wrap
from typing import Final

from psframework.autograd import picture
from psframework.autograd.layout import GAP, Layout, levels, place
from psframework.autograd.picture import LINE, Box, edge, size, text
from psframework.dist_autograd.fold import END, End, count, fold, is_freed, message_of
from psframework.proto.v1 import dist_autograd_pb2 as pb

MESSAGES: Final = 32  # of more, those alike are drawn as one
SORTED: Final = 7  # so many lanes are put in the best order
NAMES: Final = 4  # of operations in a box that stands for several
TOP: Final = 48.0  # pixels above the lanes
HEADING: Final = 26.0  # above the boxes of a lane
WIDTH: Final = 150.0  # of a lane, at least
STYLE = (
    picture.STYLE
    + """
  .lane rect { fill: #f6f8fa; stroke: #d0d7de; }
  .lane text { font-weight: 600; } .lane .small { font-weight: 400; }
  .message rect { fill: #fff8c5; stroke: #9a6700; } path.message { stroke: #bf8700; }
  #message path { fill: #bf8700; } .title { font-size: 12px; text-anchor: start; }
  .left { text-anchor: start; }
  @media (prefers-color-scheme: dark) {
    .lane rect { fill: #0d1117; stroke: #30363d; } .message rect { fill: #3b2300; }
  }"""
)
FREED = "dashed: freed by a backward; draw before it, or after one with retain_graph=True"


@dataclass
class Process:
    """What one process has said.

    Attributes:
        name: of the member.
        nodes: of its part of the graph, inputs before what uses them.
        trouble: why it said nothing.
    """

    name: str
    nodes: Sequence[pb.GraphNode] = ()
    trouble: str = ""


@dataclass
class _Lane:
    """A process in the picture; boxes of all lanes have numbers of their own, `first` is the first here."""

    process: Process
    first: int
    boxes: list[Box] = field(default_factory=list)
    edges: list[tuple[int, int]] = field(default_factory=list)

    def heading(self) -> list[str]:
        trouble = self.process.trouble
        return [self.process.name, *wrap(trouble, 40)]


def draw(processes: Sequence[Process], title: str) -> str:
    """The picture as SVG: the processes that have nodes, or trouble."""
    shown = [process for process in processes if process.nodes or process.trouble]
    ends = [node for process in shown for node in process.nodes if node.name in END]
    _label(ends)
    travelled = {message_of(node): node.nbytes for node in ends}
    number, nbytes = len(travelled), sum(travelled.values())
    notes = [f"{title}: {_many(len(shown), 'process')}, {_many(number, 'message')}, {size(nbytes)}"]
    notes += [FREED] if any(is_freed(node) for process in shown for node in process.nodes) else []
    bundled = number > MESSAGES
    end: End = _bundles(shown) if bundled else message_of
    if bundled:
        shown = [Process(each.name, fold(each.nodes, end), each.trouble) for each in shown]
    lanes = _lanes(shown, end)
    messages = _messages(shown, end)
    layers = _levels(lanes, messages, time=not bundled)
    lanes = _sorted(lanes, messages)
    return _svg(lanes, messages, layers, notes)


def _label(ends: Sequence[pb.GraphNode]) -> None:
    """The sender of a reply does not say what it is about; who asked does."""
    labels = {message_of(node): node.label for node in ends if node.label}
    for node in ends:
        node.label = labels.get(message_of(node), "")


def _lanes(processes: Sequence[Process], end: End) -> list[_Lane]:
    """Boxes and edges; `end` says which ends of messages belong together."""
    freed = {end(node) for each in processes for node in each.nodes if node.name == "send" and is_freed(node)}
    lanes, first = [], 0
    for process in processes:
        used = {i for node in process.nodes for i in node.inputs}
        boxes = [
            _box(node, number in used, is_freed(node) or (node.name in END and end(node) in freed))
            for number, node in enumerate(process.nodes)
        ]
        edges = [(i, number) for number, node in enumerate(process.nodes) for i in node.inputs]
        lanes.append(_Lane(process, first, boxes, edges))
        first += len(boxes)
    return lanes


def _messages(processes: Iterable[Process], end: End) -> list[tuple[int, int]]:
    """(send, recv) by number, for each message of which both ends are known."""
    nodes = [node for process in processes for node in process.nodes]
    sent = {end(node): number for number, node in enumerate(nodes) if node.name == "send"}
    return [
        (sent[key], number)
        for number, node in enumerate(nodes)
        if node.name == "recv" and (key := end(node)) in sent
    ]


def _bundles(processes: Sequence[Process]) -> End:
    """What messages that are drawn as one have in common: their ends, what they are about, and their depth.

    The depth is how many messages are on the longest way to it. It grows along every way, so that what is
    drawn has no cycle either.
    """
    nodes = [node for process in processes for node in process.nodes]
    edges: list[tuple[int, int]] = []
    first = 0
    for process in processes:
        edges += [(first + i, first + n) for n, node in enumerate(process.nodes) for i in node.inputs]
        first += len(process.nodes)
    edges += _messages(processes, message_of)
    above: list[list[int]] = [[] for _ in nodes]
    for start, stop in edges:
        above[stop].append(start)
    depth = [0] * len(nodes)
    layers = levels(len(nodes), edges)
    for number in sorted(range(len(nodes)), key=layers.__getitem__):
        depth[number] = max((depth[i] for i in above[number]), default=0) + (nodes[number].name == "recv")
    keys: dict[Hashable, Hashable] = {}
    owners = [process.name for process in processes for _ in process.nodes]
    for name, owner, node, deep in zip([node.name for node in nodes], owners, nodes, depth):
        if name == "send":
            keys[message_of(node)] = (owner, node.peer, node.label, deep)
        elif name == "recv":  # its sender may not have answered
            keys.setdefault(message_of(node), (node.peer, owner, node.label, deep, "recv"))
    return lambda node: keys[message_of(node)]


def _levels(lanes: Sequence[_Lane], messages: Sequence[tuple[int, int]], time: bool) -> list[int]:
    """The layer of each box. With `time`, what is left of freed graphs stands in the order of its time."""
    edges = list(messages)
    for lane in lanes:
        edges += [(lane.first + start, lane.first + stop) for start, stop in lane.edges]
        tied = {number for pair in lane.edges for number in pair}
        ends = [number for number, node in enumerate(lane.process.nodes) if node.name in END]
        for pair in pairwise(ends) if time else ():
            if not tied.issuperset(pair):
                edges.append((lane.first + pair[0], lane.first + pair[1]))
    return levels(sum(len(lane.boxes) for lane in lanes), edges)


def _sorted(lanes: list[_Lane], messages: Iterable[tuple[int, int]]) -> list[_Lane]:
    """Lanes between which messages go, side by side as far as possible."""
    if len(lanes) > SORTED:
        return lanes
    owner = [lane.process.name for lane in lanes for _ in lane.boxes]
    between = [(owner[start], owner[stop]) for start, stop in messages]

    def length(order: Iterable[_Lane]) -> int:
        place_of = {lane.process.name: i for i, lane in enumerate(order)}
        return sum(abs(place_of[a] - place_of[b]) for a, b in between)

    return list(min(permutations(lanes), key=length))


def _svg(
    lanes: Sequence[_Lane], messages: Iterable[tuple[int, int]], layers: Sequence[int], notes: Sequence[str]
) -> str:
    left, top = GAP, TOP + HEADING + LINE * (max(len(lane.heading()) for lane in lanes) - 1)
    boxes: dict[int, tuple[Box, float, float]] = {}
    height = 0.0
    frames: list[tuple[float, float, list[str]]] = []
    edges: list[str] = []
    for lane in lanes:
        placed = _placed(lane, layers)
        heading = lane.heading()
        width = max(placed.width, WIDTH, Box(heading, "").width)
        x = left + (width - placed.width) / 2
        for (start, stop), route in zip(lane.edges, placed.routes):
            shifted = [(x + a, top + b) for a, b in route]
            edges.append(edge(shifted, lane.boxes[start], lane.boxes[stop]))
        for number, (box, (a, b)) in enumerate(zip(lane.boxes, placed.centres)):
            boxes[lane.first + number] = (box, x + a, top + b)
        height = max(height, top + placed.height)
        frames.append((left, width, heading))
        left += width + GAP * 2
    for start, stop in messages:
        (upper, *source), (lower, *target) = boxes[start], boxes[stop]
        edges.append(edge([(source[0], source[1]), (target[0], target[1])], upper, lower, "message"))
    height += 8
    parts = [_frame(x, width, height - TOP, heading) for x, width, heading in frames]
    parts += [*edges, *[box.at(x, y) for box, x, y in boxes.values()]]
    parts += [
        f'<text class="{"small left" if i else "title"}" x="{GAP}" y="{20 + 16 * i}">{text(note)}</text>'
        for i, note in enumerate(notes)
    ]
    width = max(left - GAP, Box(list(notes), "").width + GAP)
    return picture.page(width, height + GAP / 2, parts, STYLE, "arrow message")


def _placed(lane: _Lane, layers: Sequence[int]) -> Layout:
    if not lane.boxes:
        return Layout([], [], 0.0, 0.0)
    own = layers[lane.first : lane.first + len(lane.boxes)]
    return place([box.width for box in lane.boxes], lane.edges, own)


def _frame(x: float, width: float, height: float, heading: Sequence[str]) -> str:
    small = ' class="small"'
    lines = [
        f'<text{small if i else ""} x="{x + width / 2:.1f}" y="{TOP + 18 + LINE * i:.1f}">{text(line)}</text>'
        for i, line in enumerate(heading)
    ]
    return (
        f'<g class="lane"><rect x="{x:.1f}" y="{TOP:.1f}" width="{width:.1f}" height="{height:.1f}" rx="8"/>'
        f"{''.join(lines)}</g>"
    )


def _box(node: pb.GraphNode, used: bool, freed: bool) -> Box:
    number = count(node)
    dashed = " freed" if freed else ""
    if node.name in END:
        return _end(node, number, dashed)
    if node.name == "leaf":
        name, _, kind = node.label.rpartition("\n")
        lines = [f"{number} leaves", size(node.nbytes)] if number > 1 else [name or "leaf", kind]
        return Box(lines, "leaf" if used else "root", " ".join(lines))
    kind = (" " if used else "root") + dashed
    if number == 1:
        keeps = [f"keeps {size(node.nbytes)}"] if node.nbytes else []
        return Box([node.name, *keeps], kind.strip() or "op", f"{node.name}{': freed by a backward' * freed}")
    ranked = sorted(node.folded.items(), key=lambda item: (-item[1], item[0]))
    names = [f"{name} ×{times}" if times > 1 else name for name, times in ranked]
    short = ", ".join(names[:NAMES]) + (", …" if len(names) > NAMES else "")
    return Box([f"{number} operations", short], kind.strip() or "op", ", ".join(names))


def _end(node: pb.GraphNode, number: int, dashed: str) -> Box:
    away = node.name == "send"
    which = f"#{node.message.counter}" if number == 1 else f"×{number}"
    about = node.label.rpartition(":")[2]
    id = f"{node.message.sender}.{node.message.counter}" if number == 1 else f"{number} messages"
    title = (
        f"{id} {'to' if away else 'from'} {node.peer}, about {node.label or 'a value'}: "
        f"{_many(node.tensors, 'tensor')}, {size(node.nbytes)}"
    )
    second = f"{about} · {size(node.nbytes)}" if about else size(node.nbytes)
    first = f"{node.name} {which} {'to' if away else 'from'} {node.peer}"
    return Box([first, second], f"message{dashed}", title)


def _many(number: int, name: str) -> str:
    if number == 1:
        return f"1 {name}"
    return f"{number} {name}{'es' if name.endswith('s') else 's'}"
