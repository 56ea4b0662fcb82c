"""Where the boxes of a directed graph go: layers from top to bottom, few crossings, straight chains.

The method is Sugiyama's (IEEE Trans. SMC 11, 1981): a layer for each box by its longest path, places in the
layers by the mean of the neighbours' places, then coordinates by the same means under a least distance.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

SWEEPS = 8
INVISIBLE = 40_000  # boxes: with so many the layout takes a second
GAP, RISE = 24.0, 72.0  # pixels between boxes of a layer, and between the tops of layers


@dataclass(frozen=True)
class Layout:
    """Where everything is.

    Attributes:
        centres: x and y of each box.
        routes: for each edge the points that it passes, its ends included.
        width: of the picture.
        height: of the picture.
    """

    centres: list[tuple[float, float]]
    routes: list[list[tuple[float, float]]]
    width: float
    height: float


def place(
    widths: Sequence[float], edges: Sequence[tuple[int, int]], given: Sequence[int] | None = None
) -> Layout:
    """Lays out boxes and edges.

    Args:
        widths: of each box, in pixels; at least one box.
        edges: (from, to) by number, without cycles; each points downwards.
        given: the layer of each box, where these are part of a larger graph.
    """
    layers_of = levels(len(widths), edges) if given is None else given
    sizes = list(widths)
    layer_of = list(layers_of)
    hops: list[list[int]] = []
    # An edge over several layers gets an invisible box in each, so that it finds a way between the others.
    direct = _direct([layers_of[end] - layers_of[start] - 1 for start, end in edges])
    for number, (start, end) in enumerate(edges):
        path = [start]
        for layer in range(layers_of[start] + 1, layers_of[end]) if number not in direct else ():
            path.append(len(sizes))
            sizes.append(0.0)
            layer_of.append(layer)
        hops.append([*path, end])
    layers: list[list[int]] = [[] for _ in range(max(layer_of) + 1)]
    for box, layer in enumerate(layer_of):
        layers[layer].append(box)
    above: list[list[int]] = [[] for _ in sizes]
    below: list[list[int]] = [[] for _ in sizes]
    for path in hops:
        for upper, lower in pairwise(path):
            below[upper].append(lower)
            above[lower].append(upper)
    _order(layers, above, below)
    x = _coordinates(layers, above, below, sizes)
    left = min(x[box] - size / 2 for box, size in enumerate(sizes)) - GAP
    x = [value - left for value in x]
    points = [(x[box], RISE * (layer_of[box] + 0.5)) for box in range(len(sizes))]
    width = max(x[box] + size / 2 for box, size in enumerate(sizes)) + GAP
    routes = [[points[box] for box in path] for path in hops]
    return Layout(points[: len(widths)], routes, width, RISE * len(layers))


def _direct(spans: Sequence[int]) -> set[int]:
    """Which edges go straight through all layers, for the shorter ones have taken what boxes may be made."""
    left, direct = INVISIBLE, set()
    for number in sorted(range(len(spans)), key=spans.__getitem__):
        left -= spans[number]
        if left < 0:
            direct.add(number)
    return direct


def levels(count: int, edges: Sequence[tuple[int, int]]) -> list[int]:
    """The layer of each box: sources just above what uses them first, everything else by its longest path."""
    below: list[list[int]] = [[] for _ in range(count)]
    waiting = [0] * count
    for start, end in edges:
        below[start].append(end)
        waiting[end] += 1
    sources = [box for box in range(count) if not waiting[box]]
    layers, ready = [0] * count, list(sources)
    while ready:
        box = ready.pop()
        for lower in below[box]:
            layers[lower] = max(layers[lower], layers[box] + 1)
            waiting[lower] -= 1
            if not waiting[lower]:
                ready.append(lower)
    for box in sources:
        if below[box]:
            layers[box] = min(layers[lower] for lower in below[box]) - 1
    return layers


def _order(layers: list[list[int]], above: list[list[int]], below: list[list[int]]) -> None:
    """Sorts each layer by the mean place of its neighbours, downwards and upwards in turn."""
    place_of: dict[int, float] = {}
    for layer in layers:
        place_of.update((box, float(i)) for i, box in enumerate(layer))
    for sweep in range(SWEEPS):
        neighbours, order = (above, layers) if sweep % 2 == 0 else (below, layers[::-1])
        for layer in order:
            means = {box: _mean([place_of[n] for n in neighbours[box]], place_of[box]) for box in layer}
            layer.sort(key=lambda box: means[box])
            place_of.update((box, float(i)) for i, box in enumerate(layer))


def _coordinates(
    layers: list[list[int]], above: list[list[int]], below: list[list[int]], sizes: list[float]
) -> list[float]:
    """Horizontal centres: as near to the neighbours' mean as order and distance allow."""
    x = [0.0] * len(sizes)
    for layer in layers:
        _spread(layer, [0.0] * len(layer), sizes, x)
    for sweep in range(2 * SWEEPS):
        neighbours, order = (above, layers) if sweep % 2 == 0 else (below, layers[::-1])
        for layer in order:
            _spread(layer, [_mean([x[n] for n in neighbours[box]], x[box]) for box in layer], sizes, x)
    return x


def _spread(layer: list[int], wanted: list[float], sizes: list[float], x: list[float]) -> None:
    """Sets `x` of a layer near to `wanted`, in order and without overlap: boxes that touch move as one."""
    groups: list[tuple[float, list[int], float]] = []  # left end, boxes, width
    for box, centre in zip(layer, wanted):
        left, boxes, width = centre - sizes[box] / 2, [box], sizes[box]
        while groups and groups[-1][0] + groups[-1][2] + GAP > left:
            before, earlier, length = groups.pop()
            total = length + GAP + width
            # Each part wants to be where it was: the joint place is the mean, weighted by boxes.
            left = (before * len(earlier) + (left - length - GAP) * len(boxes)) / (len(earlier) + len(boxes))
            boxes, width = [*earlier, *boxes], total
        groups.append((left, boxes, width))
    for left, boxes, _ in groups:
        for box in boxes:
            x[box] = left + sizes[box] / 2
            left += sizes[box] + GAP


def _mean(values: list[float], default: float) -> float:
    return sum(values) / len(values) if values else default
