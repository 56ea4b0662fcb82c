"""A batch cut into micro-batches, and their results put together again."""

from __future__ import annotations

import numbers
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from psframework.autograd import Tensor
from psframework.backend import Array, as_array, is_array, xp
from psframework.collective.algorithms import bounds
from psframework.errors import ArgumentError
from psframework.pipeline.trees import Tree, arrays_of, mapped


@dataclass(frozen=True, slots=True)
class MicroBatches:
    """The parts of a batch, item j of each list for micro-batch j.

    Attributes:
        inputs: trees of arrays, views of the batch's.
        targets: the same of what the loss compares with.
        sizes: rows of each, at least 1.
    """

    inputs: list[Tree]
    targets: list[Tree]
    sizes: list[int]

    def __len__(self) -> int:
        return len(self.sizes)

    def copied(self) -> MicroBatches:
        """The same in memory of their own."""
        inputs, targets = mapped(_copied, (self.inputs, self.targets))
        return MicroBatches(inputs, targets, self.sizes)

    @property
    def weights(self) -> list[float]:
        """Share of each in the batch: mean losses weighted so add up to that of the whole batch."""
        total = sum(self.sizes)
        return [size / total for size in self.sizes]


def split(x: Tree, y: Tree, count: int) -> MicroBatches:
    """Cuts the rows of a batch as `np.array_split` does; fewer rows than `count` make fewer micro-batches.

    Args:
        x: what goes into the model: a tree of arrays of N rows (any dtype, any device); Tensors are taken as
            their arrays. Numbers, None and arrays without axes go into each micro-batch as they are.
        y: what the loss compares with, of as many rows; or None.
        count: micro-batches, at least 1.

    Raises:
        ArgumentError: there are no rows, their numbers differ, or something is no tree.
    """
    for name, tree in (("x", x), ("y", y)):
        if isinstance(tree, tuple | list | dict) and not any(map(_has_rows, _leaves(tree, name).values())):
            raise ArgumentError(f"{name} is a {type(tree).__name__} without arrays: pass np.asarray({name})")
    borders = _borders({**_leaves(x, "x"), **_leaves(y, "y")}, count)
    sizes = [stop - start for start, stop in pairwise(borders)]
    return MicroBatches(cut_rows(x, borders), cut_rows(y, borders), sizes)


def split_tree(tree: Tree, count: int, name: str = "x") -> list[Tree]:
    """The parts of one tree, as `split` makes them.

    Args:
        tree: with an array of at least one row.
        count: parts, at least 1.
        name: what messages call it.

    Raises:
        ArgumentError: as `split`.
    """
    return cut_rows(tree, _borders(_leaves(tree, name), count))


def cut_rows(tree: Tree, borders: Sequence[int]) -> list[Tree]:
    """The parts of a tree between borders, the first of which is 0 and the last the number of its rows."""
    arrays = arrays_of(tree)

    def part(start: int, stop: int) -> Tree:
        return mapped(lambda leaf: leaf[start:stop] if _has_rows(leaf) else leaf, arrays)

    return [part(start, stop) for start, stop in pairwise(borders)]


def rows(tree: Tree, name: str = "x") -> int:
    """How many rows the arrays of a tree have.

    Raises:
        ArgumentError: none, or their numbers differ; the message calls the tree `name`.
    """
    return _rows(_leaves(tree, name))


def join(trees: Sequence[Tree]) -> Tree:
    """One tree, with the rows of all, in order: what `split_tree` cut. Tensors become arrays.

    Args:
        trees: at least one, all of one structure. What has no rows must be equal in all.

    Raises:
        ArgumentError: there is none, or they don't fit together; the message names where.
    """
    if not trees:
        raise ArgumentError("there are no micro-batches to join")
    each = [_leaves(tree, "result") for tree in trees]
    for j, leaves in enumerate(each):
        if list(leaves) != list(each[0]):
            raise ArgumentError(
                f"micro-batch {j} gave {', '.join(leaves)}, micro-batch 0 {', '.join(each[0])}: "
                "the model must give the same structure for each"
            )
    whole = iter([_joined(path, [leaves[path] for leaves in each]) for path in each[0]])
    return mapped(lambda leaf: next(whole), trees[0])


def signature(tree: Tree) -> tuple[Any, ...]:
    """What two trees must have in common to be joined: equal, and hashable.

    Structure, and of each array the dtype and the shape of a row; of what has no rows the value.
    """
    leaves = _leaves(tree, "")
    likes = [
        (leaf.dtype, leaf.shape[1:], xp(leaf)) if _has_rows(leaf) else _plain(leaf)
        for leaf in leaves.values()
    ]
    return _structure(tree), *likes


def _structure(tree: Tree) -> Any:
    if isinstance(tree, dict):
        return dict, *((key, _structure(item)) for key, item in tree.items())
    return (type(tree), *map(_structure, tree)) if isinstance(tree, tuple | list) else None


def _leaves(tree: Tree, path: str) -> dict[str, Any]:
    """Arrays, numbers and None by their paths, such as "x[0]['mask']", in the order of the tree."""
    return dict(_walk(tree, path))


def _walk(tree: Tree, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(tree, dict):
        for key, item in tree.items():
            yield from _walk(item, f"{path}[{key!r}]")
    elif isinstance(tree, tuple | list):
        for index, item in enumerate(tree):
            yield from _walk(item, f"{path}[{index}]")
    elif isinstance(tree, Tensor):
        yield path, tree.data
    elif tree is None or isinstance(tree, numbers.Number | np.generic) or is_array(tree):
        yield path, tree
    else:
        raise ArgumentError(
            f"{path} is a {type(tree).__name__}: pass arrays, numbers, None, or tuples, lists, dicts of them"
        )


def _copied(leaf: Any) -> Any:
    return leaf.copy() if is_array(leaf) else leaf


def _has_rows(leaf: Any) -> bool:
    return is_array(leaf) and leaf.ndim > 0


def _rows(leaves: dict[str, Any]) -> int:
    counts = {path: len(leaf) for path, leaf in leaves.items() if _has_rows(leaf)}
    if not counts:
        raise ArgumentError("the batch has no rows: pass arrays whose first axis counts the samples")
    first, count = next(iter(counts.items()))
    for path, other in counts.items():
        if other != count:
            raise ArgumentError(
                f"{path} has {_of_rows(other)}, {first} has {count}: give each array a row for each sample"
            )
    if not count:
        raise ArgumentError(f"{first} has 0 rows: leave out empty batches")
    return count


def _of_rows(count: int) -> str:
    return "1 row" if count == 1 else f"{count} rows"


def _borders(leaves: dict[str, Any], count: int) -> list[int]:
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise ArgumentError(f"microbatches={count!r}: a whole number, at least 1")
    total = _rows(leaves)
    return bounds(total, min(count, total))


def _joined(path: str, leaves: Sequence[Any]) -> Any:
    if all(map(_has_rows, leaves)):
        likes = [(leaf.dtype, leaf.shape[1:]) for leaf in leaves]
        if len(set(likes)) > 1:
            words = " and ".join(f"{dtype} rows of shape {shape}" for dtype, shape in dict.fromkeys(likes))
            raise ArgumentError(f"{path} has {words}: they can't be joined; make them alike")
        return leaves[0] if len(leaves) == 1 else _concatenated(leaves)
    if len({_plain(leaf) for leaf in leaves}) > 1:
        raise ArgumentError(
            f"{path} has no rows and differs between micro-batches: give a row for each sample instead"
        )
    return leaves[0]


def _concatenated(arrays: Sequence[Array]) -> Array:
    return as_array(xp(arrays[0]).concatenate(arrays))


def _plain(leaf: Any) -> Any:
    """What has no rows, as something that can be compared and hashed."""
    return ("array", leaf.dtype, leaf.item()) if is_array(leaf) else (type(leaf), leaf)
