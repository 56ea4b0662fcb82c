"""Trees: what stages take and give. An array, a number or None, or tuples, lists and dicts of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

from psframework.autograd.tensor import Tensor
from psframework.nn.layers.container import Sequential

Tree: TypeAlias = Any
"""An array, a Tensor, a number or None, or tuples, lists and dicts of them."""


def mapped(function: Callable[[Any], Any], tree: Tree) -> Tree:
    """The tree of what `function` makes of each leaf."""
    if isinstance(tree, dict):
        return {key: mapped(function, item) for key, item in tree.items()}
    if isinstance(tree, tuple | list):
        items = [mapped(function, item) for item in tree]
        return type(tree)(*items) if hasattr(tree, "_fields") else type(tree)(items)
    return function(tree)


def leaves(tree: Tree) -> Iterator[Any]:
    """The leaves, in the order of the tree."""
    if isinstance(tree, dict):
        for item in tree.values():
            yield from leaves(item)
    elif isinstance(tree, tuple | list):
        for item in tree:
            yield from leaves(item)
    else:
        yield tree


def nbytes(tree: Tree) -> int:
    """Bytes of its arrays."""
    return sum(getattr(leaf, "nbytes", 0) for leaf in leaves(tree))


def arrays_of(tree: Tree) -> Tree:
    """Tensors replaced by their arrays."""
    return mapped(lambda leaf: leaf.data if isinstance(leaf, Tensor) else leaf, tree)


def called(function: Callable[..., Any], given: Tree) -> Any:
    """Calls a stage with what the one before gave: a tuple as arguments, a dict as arguments with names.

    An `nn.Sequential` takes one argument, whatever that is, as each of its layers does.
    """
    if getattr(type(function), "forward", None) is Sequential.forward:
        return function(given)
    if isinstance(given, tuple):
        return function(*given)
    if isinstance(given, dict):
        return function(**given)
    return function(given)
