import numpy as np

from psframework.autograd import Node, tensor


def test_nodes_know_their_inputs_and_come_after_them():
    x, y = tensor(np.ones(2), True), tensor(np.ones(2))
    h = x * y
    out = h + 1
    assert isinstance(out.node, Node) and repr(out.node) == "<Node add>"
    assert h.node.edges == (x, None) and out.node.edges == (h.node, None)
    assert out.node.order > h.node.order


def test_saved_versions_are_those_that_the_rule_reads():
    x, y = tensor(np.ones(2), True), tensor(np.ones(2))
    assert len((x * y).node.saved) == 1  # y, for the gradient of x
    assert len((x + y).node.saved) == 0
    assert len(x.exp().node.saved) == 1
