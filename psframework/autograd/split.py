"""The backward in two halves: the gradients of a stage's inputs first, those of its parameters later.

Pipelines use the second half to fill the time in which they would wait: Qi et al., Zero Bubble Pipeline
Parallelism (arXiv:2401.10241).
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import Any, cast

from psframework.autograd.engine import (
    Gradient,
    Key,
    Seed,
    Sums,
    finished,
    leading_to,
    listed,
    propagate,
    start,
)
from psframework.autograd.node import Edge, Node, Rule
from psframework.autograd.traced import Traced
from psframework.backend import Array
from psframework.errors import AutogradError


def split_backward(
    roots: Traced | Sequence[Traced],
    seeds: Seed | Sequence[Seed],
    inputs: Traced | Sequence[Traced],
) -> tuple[tuple[Gradient | None, ...], Later]:
    """The gradients of `inputs` at once, and those of all other leaves later.

    Together they are those of `backward`, to the last bit, and take its time. Products that give a parameter
    its gradient (of `linear`, `matmul`, `conv`, `einsum`) are left for later; other operations on the way to
    an input answer all that they have at once, and what is for others is held. Each hook runs once, in the
    half in which its gradient comes. What only the first half reads is freed in it.

    Args:
        roots: as for `backward`.
        seeds: as for `backward`.
        inputs: leaves that require grad, one or several, or none.

    Returns:
        A gradient for each input, as `backward` gives it (None if no root depends on it), and the rest.

    Raises:
        AutogradError: as `backward` does; or an input is no leaf, or does not require grad.
    """
    wanted = listed(inputs)
    for tensor in wanted:
        if tensor._node is not None or not tensor._requires_grad:
            raise AutogradError(
                "split_backward with respect to a tensor that is no leaf, or does not require grad: give the "
                "forward a detached copy with requires_grad=True"
            )
    gradients, heap = start(roots, seeds)
    path = leading_to(set(wanted), [node for _, node in heap])
    later = {key: gradients.pop(key) for key in [*gradients] if key not in path}
    halves = [_Halves(node, path) for node in path if isinstance(node, Node) and _leads_elsewhere(node, path)]
    try:
        found = _run(gradients, [pair for pair in heap if pair[1] in path])
    finally:
        halves = [half for half in halves if half.end()]
    rest = Later(later, [pair for pair in heap if pair[1] not in path], halves)
    return tuple([found.get(tensor) for tensor in wanted]), rest


def _leads_elsewhere(node: Node, path: Set[Key]) -> bool:
    return any(edge is not None and edge not in path for edge in node.edges)


def _run(gradients: dict[Key, Any], heap: list[tuple[int, Node]]) -> dict[Key, Any]:
    heap.sort()
    return finished(gradients, propagate(gradients, heap, False, sums=(sums := Sums())), sums)


class Later:
    """The second half of a backward. If it is never run, the graph that it holds is freed with it."""

    def __init__(
        self, gradients: dict[Key, Any], heap: list[tuple[int, Node]], halves: list[_Halves]
    ) -> None:
        self._left: tuple[Any, ...] | None = (gradients, heap, halves)

    def run(self) -> dict[Traced, Gradient]:
        """Runs it, and frees the graph node by node.

        Returns:
            {leaf: gradient} for all leaves that are not among the inputs, as `backward` gives them.

        Raises:
            AutogradError: it ran before, or an array that a rule holds was changed since the forward.
        """
        if self._left is None:
            raise AutogradError("the second half of this backward ran before: run the forward again")
        gradients, heap, halves = self._left
        self._left = None
        while halves:
            node = halves.pop().resume()
            gradients[node] = None  # its rule has what came to it
            heap.append((-node.order, node))
        return cast("dict[Traced, Gradient]", _run(gradients, heap))


class _Halves:
    """A node that leads to inputs and to other leaves: its rule serves them one after the other.

    Until the first half has run it, the node has the edges on the way to inputs only.
    """

    def __init__(self, node: Node, path: Set[Key]) -> None:
        self._node = node
        self._rule, self._edges, self._saved = cast(Any, node.backward), node.edges, node.saved
        self._now = [edge in path for edge in node.edges]
        self._rest: Rule | None = None
        node.backward, node.edges = self._first, self._of(self._now)

    def _of(self, wanted: Sequence[bool]) -> tuple[Edge, ...]:
        return tuple([edge if want else None for edge, want in zip(self._edges, wanted)])

    def _first(self, gradient: Array) -> Any:
        rule, now = self._rule, self._now
        later = [edge is not None and not want for edge, want in zip(self._edges, now)]
        if _takes_wanted(rule):
            self._rest = lambda _: rule(gradient, later)
            return rule(gradient, now)
        found = rule(gradient)
        held = [contribution if want else None for contribution, want in zip(found, later)]
        self._rest = lambda _: held
        return found

    def end(self) -> bool:
        """The first half has ended, or failed: whether it ran the node, which otherwise is as it was."""
        if self._node.backward is not None:
            self._node.backward, self._node.edges = self._rule, self._edges
            return False
        return True

    def resume(self) -> Node:
        """The node as the second half runs it: with the other edges, and what came to it in its rule."""
        node = self._node
        node.backward, node.saved, node.hooks = self._rest, self._saved, None
        node.edges = self._of([not want for want in self._now])
        return node


def _takes_wanted(rule: Any) -> bool:
    """Whether a rule can be asked for some of its gradients (see `node.Rule`)."""
    code = getattr(rule, "__code__", None)
    return code is not None and code.co_varnames[1 : code.co_argcount] == ("wanted",)
