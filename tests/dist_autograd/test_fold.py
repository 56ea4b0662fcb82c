"""Folding loses no node and no way between messages, and makes no cycle."""

from hypothesis import given
from hypothesis import strategies as st

from psframework.dist_autograd.fold import END, count, fold, is_freed, message_of
from psframework.proto.v1 import dist_autograd_pb2 as pb


def node(name, inputs=(), message=None, nbytes=0, label=""):
    made = pb.GraphNode(name=name, inputs=inputs, nbytes=nbytes, label=label)
    if message is not None:
        made.message.sender, made.message.counter = 1, message
    return made


@st.composite
def graphs(draw):
    """Leaves and messages that came, operations, messages that left; some operations lead nowhere."""
    nodes = []
    for number in range(draw(st.integers(1, 30))):
        sources = [i for i, each in enumerate(nodes) if each.name != "send"]
        kind = draw(st.sampled_from(["leaf", "recv", "add", "exp", "send"])) if sources else "leaf"
        inputs = (
            draw(st.lists(st.sampled_from(sources), min_size=1, max_size=3, unique=True))
            if kind in ("add", "exp", "send")
            else []
        )
        nodes.append(node(kind, inputs, number if kind in END else None, nbytes=1))
    return nodes


def ways(nodes):
    """Which ends are reached from which messages that came."""
    above, found = [], set()
    used = {i for each in nodes for i in each.inputs}
    for number, each in enumerate(nodes):
        assert all(i < number for i in each.inputs), "inputs come first, so there is no cycle"
        reached = set().union(*[above[i] for i in each.inputs])
        above.append(reached | ({each.message.counter} if each.name == "recv" else set()))
        if each.name == "send":
            found |= {(start, each.message.counter) for start in reached}
        elif number not in used:
            found |= {(start, "root") for start in reached}
    return found


@given(graphs())
def test_nothing_is_lost_and_there_is_no_cycle(nodes):
    folded = fold(nodes)
    assert sum(map(count, folded)) == len(nodes)
    assert ways(folded) == ways(nodes)
    assert [message_of(each) for each in folded if each.name == "send"] == [
        message_of(each) for each in nodes if each.name == "send"
    ], "ends stay in their order"
    assert sum(each.nbytes for each in folded if each.name == "leaf") == sum(
        each.name == "leaf" for each in nodes
    )
    again = fold(folded)
    assert len(again) == len(folded) and ways(again) == ways(nodes)


def test_what_lies_between_the_same_messages_is_one_box():
    nodes = [
        node("recv", message=1), node("leaf", nbytes=8), node("leaf", nbytes=8),
        node("matmul", [0, 1]), node("add", [3, 2], nbytes=100), node("tanh", [4], nbytes=100),
        node("add", [5, 3]), node("send", [6], message=2),
    ]  # fmt: skip
    recv, leaves, operations, send = fold(nodes)
    assert (recv.name, send.name) == ("recv", "send")
    assert (dict(leaves.folded), leaves.nbytes) == ({"leaf": 2}, 16)
    assert dict(operations.folded) == {"matmul": 1, "add": 2, "tanh": 1}
    assert operations.nbytes == 0, "operations may keep the same arrays"
    assert [list(each.inputs) for each in (recv, leaves, operations, send)] == [[], [], [0, 1], [2]]


def test_a_graph_that_can_be_folded_again_counts_right():
    chain = [node("recv", message=1), node("exp", [0]), node("exp", [1]), node("send", [2], message=2)]
    (_, once, _) = fold(chain)
    _, twice, _ = fold([*fold(chain)])
    assert dict(once.folded) == dict(twice.folded) == {"exp": 2}


def test_ends_that_belong_together():
    nodes = [node("leaf"), node("send", [0], 1, nbytes=3), node("send", [0], 2, nbytes=4)]
    leaf, sends = fold(nodes, end=lambda each: "all")
    assert (leaf.name, dict(sends.folded), sends.nbytes) == ("leaf", {"send": 2}, 7)


def test_freed_nodes_are_told_from_others_and_not_mixed_with_them():
    nodes = [node("exp"), node("leaf"), node("add", [0, 1]), node("send", [2], 1), node("send", message=2)]
    assert [is_freed(each) for each in nodes] == [True, False, False, False, True]
    assert [is_freed(each) for each in fold(nodes)] == [True, False, False, False, True]
