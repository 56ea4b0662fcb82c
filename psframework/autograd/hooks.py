"""Hooks: what users have called with a tensor's gradient, which they may replace."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeAlias

from psframework import backend
from psframework.autograd.sparse import SparseRows
from psframework.errors import AutogradError

if TYPE_CHECKING:
    from psframework.autograd.node import Node
    from psframework.autograd.traced import Traced

Hook: TypeAlias = Callable[[Any], Any]


class Keeper:
    """The hook of `retain_grad`: it adds what it sees to the tensor's `grad`, after all other hooks."""

    def __init__(self, tensor: Traced) -> None:
        self.tensor = weakref.ref(tensor)  # the graph must not own what owns the graph

    def __call__(self, gradient: Any) -> None:
        """Add `gradient` to the tensor's `grad`, if there still is a tensor."""
        tensor = self.tensor()
        if tensor is not None:
            tensor._grad = gradient.copy() if tensor._grad is None else tensor._grad + gradient


def add_hook(tensor: Traced, hook: Hook) -> Callable[[], None]:
    """Call `hook` with the gradient of `tensor` in each backward; the result removes it again."""
    node = tensor._node
    if node is None:
        tensor.leaf_hooks = hooks = tensor.leaf_hooks or []
    else:
        node.hooks = hooks = node.hooks or []
    hooks.insert(len(hooks) - (len(hooks) > 0 and type(hooks[-1]) is Keeper), hook)
    registered = [hook]

    def remove() -> None:
        if registered:
            hooks.remove(registered.pop())

    return remove


def retain_grad(tensor: Traced, node: Node) -> None:
    """Let a backward through `node`, which made `tensor`, leave the gradient in `tensor.grad`."""
    node.hooks = node.hooks or []
    if not any(type(hook) is Keeper for hook in node.hooks):
        node.hooks.append(Keeper(tensor))


def move_keeper(tensor: Traced, node: Node) -> None:
    """`tensor` was changed in place, and is no longer what `node` made: its `grad` is of what it is now."""
    if node.hooks and type(node.hooks[-1]) is Keeper and node.hooks[-1].tensor() is tensor:
        node.hooks.pop()
        if tensor._node is not None:
            retain_grad(tensor, tensor._node)


def run_hooks(hooks: Iterable[Hook], gradient: Any, owner: str) -> Any:
    """What the hooks, one after the other, make of the `gradient` of `owner`, which messages name."""
    for hook in tuple(hooks):
        try:
            replacement = hook(gradient)
        except Exception as error:
            error.add_note(f"in a hook on the gradient of {owner}")
            raise
        if replacement is None:
            continue
        replacement = getattr(replacement, "_data", replacement)
        if not isinstance(replacement, SparseRows):
            replacement = backend.array_like(replacement, getattr(gradient, "values", gradient))
        if replacement.shape != gradient.shape:
            raise AutogradError(
                f"a hook on the gradient of {owner} returned shape {replacement.shape}: return one of shape "
                f"{gradient.shape}, or None to leave it"
            )
        gradient = replacement
    return gradient
