"""The backward pass: gradients in a dict, nodes in descending order, no recursion."""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from heapq import heappop, heappush
from sys import getrefcount
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import numpy as np

from psframework import backend
from psframework.autograd.anomaly import Detector, detector
from psframework.autograd.hooks import run_hooks
from psframework.autograd.node import Node, Parts
from psframework.autograd.offers import summing
from psframework.autograd.sparse import SparseRows
from psframework.backend import Array
from psframework.errors import ArgumentError, AutogradError

if TYPE_CHECKING:
    from psframework.autograd.traced import Traced

Key: TypeAlias = "Node | Traced"
Gradient: TypeAlias = Array | SparseRows
Seed: TypeAlias = "Array | Traced | None"

_ndarray = np.ndarray


def backward(
    roots: Traced | Sequence[Traced],
    seeds: Seed | Sequence[Seed] = None,
    *,
    retain_graph: bool = False,
    keep: Iterable[Key] = (),
) -> dict[Key, Gradient]:
    """Gradients of all roots together, with respect to every leaf below them. No `grad` is touched.

    Args:
        roots: one tensor that requires grad, or several.
        seeds: the gradient of each root, of its shape. None, or an item that is None, means 1, for a root
            of one element.
        retain_graph: keep rules and saved arrays for another backward; else they are freed node by node.
        keep: nodes whose gradients are wanted too.

    Returns:
        {leaf or kept node: gradient}. The caller owns the leaves' arrays: they share memory with nothing, are
        C-contiguous and have the leaf's dtype; a leaf that only sparse gradients came to has a coalesced
        SparseRows. A kept node's array may be shared: it must not be changed.

    Raises:
        AutogradError: a root does not require grad, the graph was freed, or a saved array was changed.
    """
    gradients, heap = start(roots, seeds)
    kept = propagate(gradients, heap, retain_graph, frozenset(keep), sums=(sums := Sums()))
    return finished(gradients, kept, sums)


def finished(
    gradients: dict[Key, Any], kept: dict[Key, Any], sums: Sums, *, lent: bool = False
) -> dict[Key, Any]:
    """`kept`, and what came to the leaves, as their owners may keep it.

    With `lent`, dense ones may share memory, be in another order, or in another dtype if a hook gave them
    that: for who copies them at once.
    """
    sums.close(gradients)
    watcher = detector()
    leaf: Any
    for leaf in gradients:
        kept[leaf] = _finish(leaf, gradients, lent)
        if watcher is not None:
            watcher.check_given(leaf, kept[leaf])
    return kept


class Sums:
    """The sums that one backward has made so far.

    Attributes:
        mine: keys whose sum was made here, so that later contributions are added in place.
        narrow: keys of 16-bit gradients, whose sums are kept in float32, with what they become in the end.
    """

    __slots__ = ("mine", "narrow")

    def __init__(self) -> None:
        self.mine: set[Key] = set()
        self.narrow: dict[Key, Any] = {}

    def close(self, gradients: dict[Key, Any]) -> None:
        """The last step has run: sums of 16-bit gradients get their dtype."""
        narrow = self.narrow
        gradients.update({key: gradients[key].astype(narrow[key]) for key in narrow if key in gradients})


def propagate(
    gradients: dict[Key, Any],
    heap: list[tuple[int, Node]],
    retain_graph: bool,
    kept: Set[Key] = frozenset(),
    floor: int = 0,
    only: Set[Key] | None = None,
    *,
    sums: Sums,
) -> dict[Key, Any]:
    """Run the rules of all nodes reached whose order is above `floor`, the newest first.

    Args:
        gradients: what has come to each node and leaf; afterwards what has come to the leaves, and to nodes
            up to `floor`.
        heap: (-order, node) of each node in `gradients`.
        retain_graph: as in `backward`.
        kept: nodes whose gradients are wanted.
        floor: order of the newest node that is not run.
        only: nodes and leaves that gradients go to; None for all. A kept node that leads to none of them is
            not run, and not freed.
        sums: the same object for each step of a backward that runs in several.

    Returns:
        The gradients of the kept nodes.
    """
    result: dict[Key, Any] = {}
    mine, narrow = sums.mine, sums.narrow
    stop, watcher = -floor, detector()
    while heap and heap[0][0] < stop:
        node = heappop(heap)[1]
        gradient = gradients.pop(node)
        if narrow and node in narrow:
            gradient = gradient.astype(narrow[node])
        if node.hooks or watcher is not None:
            gradient = _arrived(node, gradient, watcher)
        if kept and node in kept:
            result[node] = gradient
        edges = node.edges
        if only is not None:
            edges = tuple([edge if edge in only else None for edge in edges])
            if node in kept and all(edge is None for edge in edges):
                continue
        rule: Any = node.backward
        if rule is None:
            raise AutogradError(FREED.format(node.name))
        for version, count in node.saved:
            if version[0] != count:
                raise AutogradError(_CHANGED.format(node.name, version[0] - count))
        try:
            contributions = rule(gradient)
        except Exception as error:
            error.add_note(f"in the backward of '{node.name}'" + (watcher.trace(node) if watcher else ""))
            raise
        if watcher is not None:
            watcher.check(node, contributions)
        if not retain_graph:
            node.backward, node.edges, node.saved = None, (), ()
        for edge, contribution in zip(edges, contributions):
            if edge is None or contribution is None:
                continue
            if type(contribution) is not _ndarray:
                contribution = _fitted(contribution, edge)
            total = gradients.get(edge)
            if total is None:
                gradients[edge] = contribution
                if isinstance(edge, Node):
                    heappush(heap, (-edge.order, edge))
            elif edge not in mine:
                gradients[edge] = _sum(edge, total, contribution, mine, narrow)
            elif type(contribution) is SparseRows:
                contribution.add_to(total)
            else:
                total += contribution
        contributions = contribution = total = None  # what has been added is free before the next rule runs
    return result


def _arrived(node: Node, gradient: Any, watcher: Detector | None) -> Any:
    """The gradient of a node's result as hooks leave it."""
    if node.hooks:
        gradient = run_hooks(node.hooks, gradient, f"'{node.name}'")
        if isinstance(gradient, SparseRows):
            gradient = gradient.to_dense()
    if watcher is not None:
        watcher.check_given(node, gradient)
    return gradient


def _fitted(contribution: Any, edge: Key) -> Any:
    """What a rule answered, if it is no plain NumPy array, as the engine handles it."""
    if isinstance(contribution, np.generic):
        return np.asarray(contribution)  # NumPy answers scalars where arrays without axes went in
    if isinstance(contribution, SparseRows):
        # Rules compute with arrays: only leaves get rows.
        return contribution.to_dense() if isinstance(edge, Node) else contribution
    return contribution if isinstance(contribution, Parts) else backend.as_array(contribution)


def _sum(edge: Key, total: Any, contribution: Any, mine: set[Key], narrow: dict[Key, Any]) -> Any:
    """The first sum for `edge`; if it is an array, later contributions may be added in place."""
    if isinstance(contribution, SparseRows):
        total, contribution = contribution, total
    if isinstance(total, SparseRows | Parts):
        result = total + (backend.widen(contribution) if backend.is_array(contribution) else contribution)
        if isinstance(result, SparseRows | Parts):
            return result
    else:
        result = backend.as_array(backend.widen(total) + contribution)
    if backend.is_narrow(total.dtype):
        narrow[edge] = total.dtype
    mine.add(edge)
    return result


FREED = (
    "the graph of '{}' was freed by an earlier backward: run the forward again, "
    "or pass retain_graph=True to the first backward"
)
_CHANGED = (
    "an array that the backward of '{}' needs was changed in place {} time(s) since its forward: "
    "use an operation that is not in place, or change a copy"
)


def start(
    roots: Traced | Sequence[Traced], seeds: Seed | Sequence[Seed]
) -> tuple[dict[Key, Any], list[tuple[int, Node]]]:
    """What `propagate` begins with: the gradients of the roots, and the heap of their nodes."""
    roots = listed(roots)
    if seeds is None:
        seeds = [None] * len(roots)
    elif not isinstance(seeds, list | tuple):
        seeds = [cast("Seed", seeds)]
    if len(seeds) != len(roots):
        raise ArgumentError(f"{len(roots)} roots, but {len(seeds)} seeds: give one for each root")
    gradients: dict[Key, Any] = {}
    heap: list[tuple[int, Node]] = []
    for root, seed in zip(roots, seeds):
        if not root._requires_grad:
            raise AutogradError(
                "backward from a tensor that does not require grad: it was made under no_grad, by detach, "
                "or from constants only; set requires_grad=True on an input"
            )
        key: Key = root._node or root
        gradient = _seed(root, seed)
        if key in gradients:
            gradients[key] = backend.as_array(gradients[key] + gradient)
            continue
        gradients[key] = gradient
        if isinstance(key, Node):
            heappush(heap, (-key.order, key))
    return gradients, heap


def _seed(root: Traced, seed: Seed) -> Array:
    data = root._data
    if seed is None:
        if data.size != 1:
            raise AutogradError(
                f"backward from a tensor of shape {data.shape} needs a seed of that shape: "
                "only a tensor of one element has a default"
            )
        return cast(Array, backend.xp(data).array(1, data.dtype, ndmin=data.ndim))
    array: Any = getattr(seed, "_data", seed)
    if not backend.is_array(array):
        array = backend.array_like(array, data)
    if array.shape != data.shape:
        raise ArgumentError(f"seed of shape {array.shape} for a tensor of shape {data.shape}")
    return cast(Array, array if array.dtype == data.dtype else array.astype(data.dtype))


_box = [object()]
ALONE = getrefcount(_box[0])  # what getrefcount says of an object that only a container refers to


def _finish(leaf: Traced, gradients: dict[Key, Any], lent: bool = False) -> Any:
    """A leaf's gradient as its owner may keep it."""
    shared = getrefcount(gradients[leaf]) > ALONE
    gradient, data = gradients[leaf], leaf._data
    if gradient.shape != data.shape:
        raise AutogradError(f"gradient of shape {gradient.shape} for a leaf of shape {data.shape}")
    if type(gradient) is SparseRows:
        shared = True  # its rows or values may be those that a rule holds
        gradient = gradient.coalesce()
    if leaf.leaf_hooks:
        gradient = run_hooks(leaf.leaf_hooks, gradient, f"a leaf of shape {data.shape}")
        shared = True  # a hook may have kept what it saw, and answered what it keeps
    if type(gradient) is SparseRows:
        return gradient.coalesce().astype(data.dtype).copy()
    if lent:
        return gradient
    if gradient.dtype != data.dtype:
        return gradient.astype(data.dtype, order="C")
    # A rule may answer one array for two inputs, a view, or an array that somebody else holds.
    if shared or gradient.base is not None or not gradient.flags.c_contiguous:
        return gradient.copy()
    return gradient


def grad(
    outputs: Traced | Sequence[Traced],
    inputs: Traced | Sequence[Traced],
    seeds: Seed | Sequence[Seed] = None,
    *,
    retain_graph: bool = False,
    allow_unused: bool = False,
) -> tuple[Gradient | None, ...]:
    """Gradients of `outputs` with respect to `inputs`, leaves or not; no leaf's `grad` is touched.

    Only nodes that lead to an input are run, and freed: `h.backward(*grad(loss, h))` is one backward in two
    steps.

    Args:
        outputs: one tensor or several.
        inputs: one tensor or several, each requiring grad.
        seeds: a gradient for each output, as for `backward`.
        retain_graph: keep the graph for another backward.
        allow_unused: answer None for an input that no output depends on, instead of raising.

    Returns:
        An array for each input, or SparseRows for a leaf that only sparse gradients came to.
    """
    wanted = listed(inputs)
    for tensor in wanted:
        if not tensor._requires_grad:
            raise AutogradError(
                "grad with respect to a tensor that does not require grad: set requires_grad=True before the "
                "forward, and give the tensor that was used there"
            )
    keys: list[Key] = [tensor._node or tensor for tensor in wanted]
    gradients, heap = start(outputs, seeds)
    only = leading_to(set(keys), [node for _, node in heap])
    gradients = {key: gradient for key, gradient in gradients.items() if key in only}
    heap = sorted(pair for pair in heap if pair[1] in only)
    kept = {key for key in keys if isinstance(key, Node)}
    with summing({}):  # inside of a rule or a hook: totals are of the backward that it is part of
        values = propagate(gradients, heap, retain_graph, kept, only=only, sums=(sums := Sums()))
    found = finished(gradients, values, sums)
    if not allow_unused and any(key not in found for key in keys):
        raise AutogradError(
            "no output depends on one of the inputs, or an earlier backward freed the graph between them: "
            "pass allow_unused=True to get None"
        )
    return tuple(
        [found[key].copy() if isinstance(key, Node) and key in found else found.get(key) for key in keys]
    )


def leading_to(wanted: set[Key], tops: list[Node]) -> set[Key]:
    """`wanted`, and the nodes below `tops` (and these) that a gradient passes on its way there."""
    oldest = min((key.order if isinstance(key, Node) else 0 for key in wanted), default=0)
    seen, stack = set(tops), list(tops)
    while stack:
        for edge in stack.pop().edges:
            if isinstance(edge, Node) and edge.order >= oldest and edge not in seen:
                seen.add(edge)
                stack.append(edge)
    found = set(wanted)
    for node in sorted(seen, key=lambda node: node.order):
        # A freed node has no edges any more: who reaches it is told so.
        if node.backward is None or not found.isdisjoint(node.edges):
            found.add(node)
    return found


def listed(tensors: Traced | Iterable[Traced]) -> list[Traced]:
    """One tensor, or several, as a list."""
    one: Any = tensors
    return [one] if hasattr(one, "_requires_grad") else list(one)
