import itertools

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from psframework.autograd import layout
from psframework.autograd.layout import GAP, RISE, place


@st.composite
def graphs(draw):
    count = draw(st.integers(1, 25))
    pairs = st.tuples(st.integers(0, count - 1), st.integers(0, count - 1))
    edges = {(min(pair), max(pair)) for pair in draw(st.lists(pairs, max_size=40)) if pair[0] != pair[1]}
    widths = draw(st.lists(st.floats(10, 300), min_size=count, max_size=count))
    return widths, sorted(edges)


@settings(max_examples=60)
@given(graphs())
def test_boxes_do_not_overlap_and_edges_point_down(graph):
    widths, edges = graph
    placed = place(widths, edges)
    for (a, first), (b, second) in itertools.combinations(enumerate(placed.centres), 2):
        if first[1] == second[1]:
            assert abs(first[0] - second[0]) >= (widths[a] + widths[b]) / 2 + GAP - 1e-6
    for (start, end), route in zip(edges, placed.routes):
        assert route[0] == placed.centres[start] and route[-1] == placed.centres[end]
        assert all(lower[1] - upper[1] == RISE for upper, lower in itertools.pairwise(route))
    for (x, y), width in zip(placed.centres, widths):
        assert width / 2 <= x <= placed.width - width / 2 and 0 < y < placed.height


def test_a_chain_is_a_straight_line():
    placed = place([80, 200, 30, 10], [(0, 1), (1, 2), (2, 3)])
    assert len({round(x, 6) for x, _ in placed.centres}) == 1


def test_sources_stand_just_above_their_first_use():
    placed = place([10] * 5, [(0, 1), (1, 2), (2, 3), (4, 3)])
    assert placed.centres[4][1] == placed.centres[2][1]


def test_layers_may_be_given():
    """As part of a larger graph: a layer may stay empty, and an edge goes straight through it."""
    placed = place([40, 60, 20], [(0, 2)], [1, 1, 4])
    assert [y for _, y in placed.centres] == [1.5 * RISE, 1.5 * RISE, 4.5 * RISE]
    assert len(placed.routes[0]) == 4 and placed.height == 5 * RISE


def test_crossings_are_avoided():
    """Two chains given in crossed order: a b, then b' a'."""
    placed = place([40] * 6, [(0, 3), (1, 2), (3, 4), (2, 5)])
    x = np.array([centre[0] for centre in placed.centres])
    assert np.sign(x[0] - x[1]) == np.sign(x[3] - x[2]) == np.sign(x[4] - x[5])


def test_a_dense_graph_costs_no_more_than_so_many_invisible_boxes(monkeypatch):
    monkeypatch.setattr(layout, "INVISIBLE", 30)
    edges = list(itertools.combinations(range(12), 2))
    placed = place([40] * 12, edges)
    points = [len(route) for route in placed.routes]
    assert 2 * len(edges) + 20 < sum(points) <= 2 * len(edges) + 30
    assert points[edges.index((0, 1))] == 2 and points[edges.index((0, 2))] == 3  # the short ones get theirs
    assert points[edges.index((0, 11))] == 2  # straight through
