"""recompute: keep what goes into a function and not what it saves; run it again in backward.

Chen et al., Training Deep Nets with Sublinear Memory Cost (arXiv:1604.06174).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextvars import Context, ContextVar, copy_context
from functools import partial
from typing import Any, TypeVar, cast

from psframework.autograd.engine import Gradient, Key, Sums, propagate, start
from psframework.autograd.grad_mode import is_grad_enabled
from psframework.autograd.node import Node, Version, next_order
from psframework.autograd.random_state import RandomStates
from psframework.autograd.record import record_results, versions_of
from psframework.autograd.tensor import Tensor
from psframework.autograd.watch import observing
from psframework.backend import Array, follow
from psframework.errors import AutogradError

T = TypeVar("T")

_again: ContextVar[bool] = ContextVar("psframework_recomputing", default=False)

# Whether this is the second run of a function given to `recompute`: running statistics have been updated.
is_recomputing: Callable[[], bool] = _again.get


def recompute(function: Callable[..., T], /, *args: Any, **kwargs: Any) -> T:
    """`function(*args, **kwargs)`, which saves nothing for backward but its arguments, and runs again there.

    Gradients reach every tensor that it used, arguments or not: parameters of a module too. It must do the
    same both times, and change nothing in place that outlives it; a parameter whose `.data` was assigned in
    between is not noticed, so step the optimizer after the backward. Dropout draws the same mask again, as
    does whatever draws from `replayable(generator)`. The second run sees the context variables of the first,
    and `is_recomputing()`.

    Args:
        function: answers a Tensor, or tuples, lists and dicts of them; other things are passed on.
        *args: of the function.
        **kwargs: of the function.

    Returns:
        What `function` answered.

    Raises:
        AutogradError: the function changed an argument in place; or, in backward, the second run gave other
            results, or used other tensors, or a distributed optimizer has stepped one of them meanwhile.
    """
    if not is_grad_enabled():
        return function(*args, **kwargs)
    context, states, before = copy_context(), RandomStates(), next_order()
    given = versions_of([*_tensors((args, kwargs))])
    with observing(_forget), states.recorded():
        answer = function(*args, **kwargs)
    if any(version[0] != count for version, count in given):
        raise AutogradError(
            "recompute: the function changed an argument in place, and would again in backward"
        )
    results = _made_after(before, answer)
    if not results:
        return answer
    datas = [result._data for result in results]
    edges, rule = _entries(results, before), _rule(context, states, lambda: function(*args, **kwargs))
    used = [edge for edge in edges if isinstance(edge, Tensor)]
    versions = (*versions_of(used), *given)
    lasting = [(each, each._version) for each in used]
    outs = record_results("recompute", datas, partial(rule, edges, lasting, _likes(results)), edges, versions)
    for out, result in zip(outs, results):
        out._version = result._version  # it may be a view of an argument
    return cast(T, _replaced(answer, {id(result): out for result, out in zip(results, outs)}))


def _rule(context: Context, states: RandomStates, function: Callable[[], Any]) -> Callable[..., Any]:
    def again() -> Any:
        _again.set(True)
        with states.replayed():
            return function()

    def rule(
        edges: tuple[Key, ...],
        lasting: list[tuple[Tensor, Version]],
        likes: list[Any],
        gradients: tuple[Array | None, ...],
    ) -> list[Gradient | None]:
        floor = next_order()
        results = _made_after(floor, context.copy().run(follow, again))
        if any(leaf._version is not version for leaf, version in lasting):
            raise AutogradError(
                "recompute: a parameter that the function uses got other values since it ran at first: step "
                "after the backward, or do without recompute where several contexts step the same parameters"
            )
        if _likes(results) != likes:
            raise AutogradError(
                f"recompute: the function gave {_words(likes)} at first and {_words(_likes(results))} when "
                "it ran again: it must do the same both times"
            )
        pairs = [(result, g) for result, g in zip(results, gradients) if g is not None]
        pending, heap = start([result for result, _ in pairs], [g for _, g in pairs])
        propagate(pending, heap, False, floor=floor, sums=(sums := Sums()))
        sums.close(pending)
        found = [pending.pop(edge, None) for edge in edges]
        if pending:
            raise AutogradError(
                "recompute: when the function ran again it used other tensors than at first: it must do the "
                "same both times, and a tensor that requires grad has to be made outside of it"
            )
        return found

    return rule


def _forget(node: Node, data: Array | None) -> None:
    """Of the first run only the edges are kept: they tell which tensors the function used."""
    node.backward, node.saved = _refuse, ()


def _refuse(gradient: Array) -> Any:
    raise AutogradError(
        "backward into the inside of a function given to recompute: what it made can be used outside only if "
        "it is returned, as a tensor or in tuples, lists and dicts"
    )


def _entries(results: list[Tensor], before: int) -> tuple[Key, ...]:
    """What the graph of `results` takes from outside: leaves, and nodes up to the order `before`."""
    found: dict[Key, None] = {}
    seen: set[Node] = set()
    stack = [result._node for result in results]
    while stack:
        node = stack.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        for edge in node.edges:
            if isinstance(edge, Node) and edge.order > before:
                stack.append(edge)
            elif edge is not None:
                found[edge] = None
    return tuple(found)


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        yield from _tensors(list(value.values()))
    elif isinstance(value, tuple | list):
        for item in value:
            yield from _tensors(item)


def _made_after(before: int, answer: Any) -> list[Tensor]:
    """The tensors in `answer` that nodes younger than `before` made, each once."""
    found = {id(tensor): tensor for tensor in _tensors(answer)}
    return [tensor for tensor in found.values() if tensor._node is not None and tensor._node.order > before]


def _likes(results: list[Tensor]) -> list[Any]:
    return [(result.shape, result.dtype) for result in results]


def _words(likes: list[Any]) -> str:
    return ", ".join(f"{shape} {dtype}" for shape, dtype in likes) or "no tensors"


def _replaced(value: Any, by: dict[int, Tensor]) -> Any:
    if isinstance(value, Tensor):
        return by.get(id(value), value)
    if isinstance(value, dict):
        return {key: _replaced(item, by) for key, item in value.items()}
    if isinstance(value, tuple | list):
        items = [_replaced(item, by) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    return value
