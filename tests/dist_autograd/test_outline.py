"""What one process says of its part: everything that led to messages, in the order of their time."""

import gc

import numpy as np

from psframework.autograd import tensor
from psframework.dist_autograd.context import Context
from psframework.dist_autograd.ids import ContextId, TensorsId
from psframework.dist_autograd.outline import living, outline
from psframework.dist_autograd.pairs import Sent


def context():
    return Context(ContextId(1, 1), "trainer")


def came(context, counter, count=1):
    message = context.arriving(TensorsId(2, counter), ("worker-0", 2), "model.forward")
    return [message.take(index, np.ones(4)) for index in range(count)]


def leaves(context, counter, *tensors):
    sent = context.sent[TensorsId(1, counter)] = Sent(TensorsId(1, counter), "worker-0", "model.forward")
    for each in tensors:
        sent.add(each)


def shown(reply):
    return [(each.name, list(each.inputs)) for each in reply.nodes]


def test_from_what_came_to_what_left():
    own = context()
    w = tensor(np.ones((4,)), True)
    a, b = came(own, 7, 2)
    leaves(own, 1, (a * w).exp(), b)
    own.peers["worker-0"] = None
    reply = outline(own, names={w: "weight"})
    assert list(reply.peers) == ["worker-0"]
    nodes = {each.name: each for each in reply.nodes}
    assert sorted(nodes) == ["exp", "leaf", "multiply", "recv", "send"], "both tensors came by one message"
    assert {list(reply.nodes)[i].name for i in nodes["send"].inputs} == {"exp", "recv"}
    assert (nodes["leaf"].label, nodes["leaf"].nbytes) == ("weight\n(4,) float64", 32)
    recv, send = nodes["recv"], nodes["send"]
    assert (recv.message.sender, recv.message.counter, recv.peer, recv.label) == (
        2,
        7,
        "worker-0",
        "model.forward",
    )
    assert (recv.tensors, recv.nbytes, send.tensors, send.nbytes) == (2, 64, 2, 64)
    assert nodes["exp"].nbytes == 32, "what it keeps for the backward"


def test_what_a_backward_has_freed_is_left_as_messages_in_the_order_of_their_time():
    own = context()
    w = tensor(np.ones(4), True)
    leaves(own, 1, w * 2)
    (back,) = came(own, 7)
    leaves(own, 2, back * 2)
    for sent in own.sent.values():
        sent.node.backward, sent.node.edges = None, ()
    del back
    assert [(each.name, each.message.counter) for each in outline(own).nodes] == [
        ("send", 1),
        ("recv", 7),
        ("send", 2),
    ]


def test_living_finds_what_hangs_on_messages_of_this_context_alone():
    own, other = context(), context()
    (x,), (y,) = came(own, 1), came(other, 1)
    w = tensor(np.ones(4), True)
    loss = (x * w).sum()
    elsewhere, apart = (y * w).sum(), (w * 2).sum()
    (x * 3).sum()  # nobody holds it
    gc.collect()
    found = living(own)
    assert [node.name for node in found] == ["recv", "multiply", "sum"] and loss._node in found
    assert elsewhere._node not in found and apart._node not in found
    assert {name for name, _ in shown(outline(own, found))} == {"recv", "multiply", "leaf", "sum"}
    assert shown(outline(own)) == [("recv", [])], "nothing left from here"
    assert [name for name, _ in shown(outline(own, [apart._node]))] == ["recv", "leaf", "multiply", "sum"]


def test_a_context_that_ends_meanwhile_has_nothing_living():
    class Ending(dict):
        """Another thread clears it, when its keys have been read."""

        def __iter__(self):
            keys = list(super().__iter__())
            self.clear()
            return iter(keys)

    own = context()
    own.sent = Ending()
    leaves(own, 1, tensor(np.ones(4), True))
    living(own)
    own.end("has ended")
    assert living(own) == []


def test_a_message_that_is_being_sent_may_grow_meanwhile():
    own = context()
    first, second = (tensor(np.ones(4), True) for _ in range(2))
    leaves(own, 1, first)
    (sent,) = own.sent.values()

    class Names(dict):
        def get(self, key, default=None):
            if key is first:
                sent.add(second)
            return default

    assert shown(outline(own, names=Names())) == [("leaf", []), ("send", [0])]


def test_a_large_graph_is_folded_and_a_deep_one_does_not_recurse():
    own = context()
    (x,) = came(own, 1)
    for _ in range(5000):
        x = x + 1
    leaves(own, 1, x)
    assert len(outline(own).nodes) == 5002
    assert shown(outline(own, limit=60)) == [("recv", []), ("add", [0]), ("send", [1])]
    assert len(outline(own, limit=5002).nodes) == 5002
