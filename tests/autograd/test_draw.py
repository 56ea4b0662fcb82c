"""Pictures of graphs are read back as XML: every box and every edge is there."""

import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest

from psframework.autograd import Function, Tensor, recompute, tensor
from psframework.autograd.draw import draw
from psframework.errors import ArgumentError

SVG = "{http://www.w3.org/2000/svg}"


def read(drawing):
    root = ElementTree.fromstring(drawing.svg)
    boxes = [(g.get("class"), [t.text for t in g.findall(f"{SVG}text")]) for g in root.findall(f"{SVG}g")]
    edges = [path for path in root.findall(f"{SVG}path") if path.get("marker-end")]
    return boxes, len(edges)


def test_operations_leaves_and_edges(tmp_path):
    w, x = tensor(np.ones((3, 2)), True), tensor(np.ones((4, 2)), True)
    loss = ((x @ w.T).relu() ** 2).sum()
    drawing = draw(loss, tmp_path / "deep" / "graph.svg", names={"w <&>": w})
    assert (tmp_path / "deep" / "graph.svg").read_text() == drawing.svg == drawing._repr_svg_()
    boxes, edges = read(drawing)
    kinds = {lines[0]: kind for kind, lines in boxes}
    assert kinds == {
        "sum": "root", "power": "op", "relu": "op", "matmul": "op", "transpose": "op",
        "w <&>": "leaf", "leaf": "leaf",
    }  # fmt: skip
    assert edges == 6
    assert ["w <&>", "(3, 2) float64"] in [lines for _, lines in boxes]


def test_what_the_backward_keeps_and_what_it_freed():
    x = tensor(np.ones(1 << 17), True)
    loss = (x * np.ones(1 << 17)).sum()
    boxes, _ = read(draw(loss, None))
    assert ("op", ["multiply", "keeps 1 MiB"]) in boxes
    loss.backward()
    boxes, edges = read(draw(loss, None))
    assert boxes == [("root freed", ["sum"])] and edges == 0


class TwoResults(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x * 2)
        ctx.parts = {"third": [x * 3]}
        return x * 1, x * 2

    @staticmethod
    def backward(ctx, first, second):
        return first


def test_what_functions_and_recompute_keep():
    x = tensor(np.ones(1 << 17), True)
    boxes, _ = read(draw(TwoResults.apply(x)[0], None))
    assert [lines for _, lines in boxes][:2] == [["TwoResults"], ["TwoResults", "keeps 2 MiB"]]
    boxes, _ = read(draw(recompute(lambda a: (a * a).exp().exp(), x), None))
    assert ["recompute", "keeps 1 MiB"] in [lines for _, lines in boxes]


def test_a_tensor_used_twice_has_one_box_and_an_operation_used_twice_one_edge_each():
    x = tensor(1.0, True, dtype=float)
    y = x * x
    boxes, edges = read(draw([y + 1, y.exp()], None))
    assert sorted(lines[0] for _, lines in boxes) == ["add", "exp", "leaf", "multiply"]
    assert edges == 3


def test_a_large_graph_is_cut_and_a_deep_one_does_not_recurse():
    x = y = tensor(1.0, True, dtype=float)
    for _ in range(5000):
        y = y + x
    boxes, edges = read(draw(y, None, limit=20))
    assert len(boxes) == 21 and boxes[-1][0] == "more" and edges >= 20


def test_names_that_xml_cannot_write():
    w = tensor(np.ones(2), True)
    boxes, _ = read(draw((w * 2).sum(), None, names={"a\x00b\n]]>": w}))
    assert "a?b?]]>" in [lines[0] for _, lines in boxes]


@pytest.mark.parametrize("root", [Tensor(np.ones(1)), [], np.ones(1), [tensor(np.ones(1), True), None]])
def test_what_has_no_graph(root):
    with pytest.raises(ArgumentError, match="requires grad"):
        draw(root, None)


def test_a_leaf_is_a_graph():
    leaf = tensor(np.ones(1), True)
    assert [kind for kind, _ in read(draw(leaf, None))[0]] == ["root"]
