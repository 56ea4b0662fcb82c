"""Pictures of graphs over several processes are read back as XML: every box, arrow and name is there."""

import itertools
import re
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from psframework.dist_autograd import picture as pictures
from psframework.dist_autograd.picture import FREED, MESSAGES, Process, draw
from psframework.proto.v1 import dist_autograd_pb2 as pb

SVG = "{http://www.w3.org/2000/svg}"
INCARNATIONS = {"A": 1, "B": 2, "C": 3}


@dataclass
class Read:
    """What is in a picture."""

    lanes: dict[str, tuple[float, float]]
    boxes: list[tuple[str, list[str], float, float, float]]
    arrows: list[tuple[float, float, float, float]]
    edges: list[tuple[float, float, float, float]]
    notes: list[str]


def read(svg):
    root = ElementTree.fromstring(svg)
    lanes, boxes = {}, []
    for group in root.findall(f"{SVG}g"):
        rect, lines = group.find(f"{SVG}rect"), [line.text for line in group.findall(f"{SVG}text")]
        x, width = float(rect.get("x")), float(rect.get("width"))
        if group.get("class") == "lane":
            lanes[" ".join(lines)] = (x, x + width)
        else:
            boxes.append((group.get("class"), lines, x, x + width, float(rect.get("y"))))
    paths = root.findall(f"{SVG}path")
    arrows, edges = [], []
    for path in paths:
        numbers = [float(number) for number in re.findall(r"-?[\d.]+", path.get("d"))]
        (arrows if path.get("class") == "message" else edges).append((*numbers[:2], *numbers[-2:]))
    notes = [line.text for line in root.findall(f"{SVG}text")]
    return Read(lanes, boxes, arrows, edges, notes)


class World:
    """Processes that send each other tensors."""

    def __init__(self, names="ABC"):
        self.nodes = {name: [] for name in names}
        self._counter = itertools.count(1)

    def add(self, name, kind, inputs=(), **fields):
        self.nodes[name].append(pb.GraphNode(name=kind, inputs=inputs, **fields))
        return len(self.nodes[name]) - 1

    def send(self, source, inputs, to, about="model.forward", received=True):
        message = pb.TensorsId(sender=INCARNATIONS[source], counter=next(self._counter))
        rest = {"message": message, "nbytes": 64, "tensors": 1}
        self.add(source, "send", inputs, peer=to, **rest)
        return self.add(to, "recv", peer=source, label=about, **rest) if received else None

    def processes(self):
        return [Process(name, nodes) for name, nodes in self.nodes.items()]


def recursion():
    """A -> B -> A."""
    world = World("AB")
    world.add("A", "leaf", label="w\n(4,) float64", nbytes=32)
    world.add("B", "exp", [world.send("A", [0], "B")], nbytes=64)
    world.add("A", "sum", [world.send("B", [1], "A")])
    return world


def test_a_lane_for_each_process_and_arrows_between_them():
    picture = read(draw(recursion().processes(), "context 1.1 of A"))
    assert picture.notes == ["context 1.1 of A: 2 processes, 2 messages, 128 B"]
    kinds = {lines[0]: (kind, lines[1:]) for kind, lines, *_ in picture.boxes}
    assert kinds == {
        "w": ("leaf", ["(4,) float64"]),
        "send #1 to B": ("message", ["model.forward · 64 B"]),
        "recv #1 from A": ("message", ["model.forward · 64 B"]),
        "exp": ("op", ["keeps 64 B"]),
        "send #2 to A": ("message", ["model.forward · 64 B"]),
        "recv #2 from B": ("message", ["model.forward · 64 B"]),
        "sum": ("root", []),
    }, "the sender of a reply learns what it is about from who asked"
    assert len(picture.arrows) == 2 and len(picture.edges) == 4
    (there, back) = sorted(picture.arrows, key=lambda arrow: arrow[1])
    (a, b) = picture.lanes["A"], picture.lanes["B"]
    assert a[0] < there[0] < a[1] <= b[0] < there[2] < b[1], "from lane to lane"
    assert b[0] < back[0] < b[1] and a[0] < back[2] < a[1] and there[3] < back[1], "data flows down"


def test_boxes_are_in_their_lane_and_apart():
    picture = read(draw(recursion().processes(), "context 1.1 of A"))
    for _, _, left, right, _ in picture.boxes:
        assert any(start <= left and right <= stop for start, stop in picture.lanes.values())
    for one, other in itertools.combinations(picture.boxes, 2):
        assert one[4] != other[4] or one[3] < other[2] or other[3] < one[2]


def test_those_who_talk_are_side_by_side():
    world = World("ABC")  # B and C talk with A alone, which comes first
    world.add("A", "leaf")
    for name in "BC":
        world.send("A", [0], name)
    lanes = read(draw(world.processes(), "")).lanes
    assert sorted(lanes, key=lanes.get)[1] == "A"


def test_what_was_freed_is_dashed_and_in_the_order_of_its_time():
    world = World("AB")
    world.send("A", [], "B")
    world.send("B", [], "A")
    world.add("A", "leaf")
    world.send("A", [2], "B")  # this one took no part
    picture = read(draw(world.processes(), "context"))
    assert picture.notes[1:] == [FREED]
    ends = sorted((y, lines[0], kind) for kind, lines, _, _, y in picture.boxes if "#" in lines[0])
    assert [(name, kind) for _, name, kind in ends] == [
        ("send #1 to B", "message freed"), ("recv #1 from A", "message freed"),
        ("send #2 to A", "message freed"), ("recv #2 from B", "message freed"),
        ("send #3 to B", "message"), ("recv #3 from A", "message"),
    ]  # fmt: skip


def test_a_process_that_can_not_be_asked_and_one_with_nothing_to_show():
    world = World("AB")
    world.add("A", "leaf")
    world.send("A", [0], "B")
    processes = [world.processes()[0], Process("B", trouble="B is gone {0} <for ever>"), Process("C")]
    picture = read(draw(processes, "context"))
    assert list(picture.lanes) == ["A", "B B is gone {0} <for ever>"] and picture.arrows == []
    assert "2 processes, 1 message," in picture.notes[0]


def test_names_that_xml_can_not_write():
    world = World("AB")
    world.add("A", "leaf", label="w\x00<&\n(1,) float64")
    world.send("A", [0], "B", about="a:f<T>\x1b")
    processes = [Process("A&{x}", world.nodes["A"]), Process("<B>", world.nodes["B"])]
    picture = read(draw(processes, "<context>"))
    assert {"A&{x}", "<B>"} == set(picture.lanes) and picture.notes[0].startswith("<context>")
    lines = [line for _, lines, *_ in picture.boxes for line in lines]
    assert "w?<&" in lines and "f<T>? · 64 B" in lines


def test_many_messages_that_are_alike_are_one_arrow():
    world = World("AB")
    world.add("A", "leaf")
    replies = []
    for _ in range(MESSAGES):
        done = world.add("B", "exp", [world.send("A", [world.add("A", "multiply", [0])], "B")])
        replies.append(world.send("B", [done], "A"))
    world.add("A", "stack", replies)
    picture = read(draw(world.processes(), "context"))
    assert "64 messages, 4 KiB" in picture.notes[0] and len(picture.arrows) == 2
    assert {"send ×32 to B", "recv ×32 from A", "32 operations", "send ×32 to A", "stack"} < {
        lines[0] for _, lines, *_ in picture.boxes
    }
    (missing,) = [Process("A", world.nodes["A"])]
    alone = read(draw([missing, Process("B", trouble="gone")], "context"))
    assert "recv ×32 from B" in {lines[0] for _, lines, *_ in alone.boxes} and alone.arrows == []


@st.composite
def worlds(draw):
    """Programs over three processes: each step computes something, or sends what one has to another."""
    world = World()
    for name in world.nodes:
        world.add(name, "leaf", label="(1,) float64")
    for _ in range(draw(st.integers(1, 60))):
        name, other = draw(st.permutations(list(world.nodes)))[:2]
        usable = [number for number, node in enumerate(world.nodes[name]) if node.name != "send"]
        inputs = draw(st.lists(st.sampled_from(usable), min_size=1, max_size=3, unique=True))
        if draw(st.booleans()):
            world.add(name, draw(st.sampled_from(["add", "exp"])), inputs)
        else:
            freed = draw(st.integers(0, 5)) == 0
            about = draw(st.sampled_from(["f", "g"]))
            world.send(name, [] if freed else inputs, other, about, draw(st.integers(0, 5)) > 0)
    return world


@settings(max_examples=40, deadline=None)
@given(worlds(), st.sampled_from([0, 3, MESSAGES]))
def test_whatever_is_called_the_picture_flows_down(world, most):
    """With messages folded or not: were there a cycle, some arrow would point up."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pictures, "MESSAGES", most)
        picture = read(draw(world.processes(), "context"))
    assert all(upper < lower for _, upper, _, lower in picture.arrows + picture.edges)
    for one, other in itertools.combinations(picture.boxes, 2):
        assert one[4] != other[4] or one[3] < other[2] or other[3] < one[2]
