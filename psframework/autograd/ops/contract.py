"""Sums of products of arrays by labels: what `einsum` and its gradients are computed by."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import combinations
from math import prod
from typing import NamedTuple, cast

from psframework import backend
from psframework.autograd.ops.matmul import product
from psframework.backend import Array

Shape = tuple[int, ...]


def contract(arrays: Sequence[Array], labels: Sequence[str], output: str) -> Array:
    """The sum of products of arrays, two at a time, as batches of matrix products.

    Args:
        arrays: one or more, of one dtype that is not of 16 bits.
        labels: of each, a letter an axis, none twice in one array; a letter means one length everywhere.
        output: the letters of the result, each of which some array has; all others are summed over.
    """
    steps, last = _plan(tuple(labels), output, tuple([array.shape for array in arrays]))
    terms = list(arrays)
    for step in steps:
        b, a = terms.pop(step.second), terms.pop(step.first)
        x, y = _arranged(a, step.left), _arranged(b, step.right)
        terms.append(backend.as_array(x * y) if step.shape is None else product(x, y).reshape(step.shape))
    return _arranged(terms[0], last)


class _Side(NamedTuple):
    """How an operand is laid out: axes summed over, then the order of the others, then their shape."""

    summed: Shape
    order: Shape
    shape: Shape


class _Step(NamedTuple):
    """Two terms, and how they are multiplied: as matrices into `shape`, or elementwise if it is None."""

    first: int
    second: int
    left: _Side
    right: _Side
    shape: Shape | None


def _arranged(array: Array, side: _Side) -> Array:
    if side.summed:
        array = backend.as_array(array.sum(axis=side.summed, dtype=array.dtype))
    if side.order:
        array = array.transpose(side.order)
    return array if array.shape == side.shape else array.reshape(side.shape)


@lru_cache(maxsize=4096)
def _plan(labels: tuple[str, ...], output: str, shapes: tuple[Shape, ...]) -> tuple[list[_Step], _Side]:
    """The products to make, and how the last term becomes the result."""
    sizes = {letter: n for term, shape in zip(labels, shapes) for letter, n in zip(term, shape)}
    terms, steps = list(labels), []
    while len(terms) > 1:
        i, j = _cheapest(terms, output, sizes)
        second, first = terms.pop(j), terms.pop(i)
        kept = frozenset(output).union(*terms)
        step, letters = _step(i, j, (first, second), kept, sizes)
        steps.append(step)
        terms.append(letters)
    return steps, _side(terms[0], (output,), tuple(sizes[letter] for letter in output))


def _cheapest(terms: list[str], output: str, sizes: dict[str, int]) -> tuple[int, int]:
    """Which two to multiply next: those whose result is smallest beside them, then the fewest products."""

    def count(letters: frozenset[str]) -> int:
        return prod(sizes[letter] for letter in letters)

    def cost(pair: tuple[int, int]) -> tuple[int, int]:
        first, second = (frozenset(terms[k]) for k in pair)
        others = frozenset(output).union(*(term for k, term in enumerate(terms) if k not in pair))
        return count((first | second) & others) - count(first) - count(second), count(first | second)

    return min(combinations(range(len(terms)), 2), key=cost)


def _step(
    i: int, j: int, terms: tuple[str, str], kept: frozenset[str], sizes: dict[str, int]
) -> tuple[_Step, str]:
    """The product of two terms, summed over the letters that are not kept; and the letters of the result."""
    x, y = terms
    batch = "".join(letter for letter in x if letter in y and letter in kept)
    summed = "".join(letter for letter in x if letter in y and letter not in kept)
    rows = "".join(letter for letter in x if letter not in y and letter in kept)
    columns = "".join(letter for letter in y if letter not in x and letter in kept)
    letters = batch + rows + columns

    def lengths(group: str) -> Shape:
        return tuple(sizes[letter] for letter in group)

    if not summed:
        left = _side(x, (batch, rows), (*lengths(batch + rows), *(1 for _ in columns)))
        right = _side(y, (batch, columns), (*lengths(batch), *(1 for _ in rows), *lengths(columns)))
        return _Step(i, j, left, right, None), letters
    b, m, k, n = (prod(lengths(group)) for group in (batch, rows, summed, columns))
    before = (b,) if batch else ()
    left = _side(x, (batch, rows, summed), (*before, m, k))
    right = _side(y, (batch, summed, columns), (*before, k, n))
    return _Step(i, j, left, right, lengths(letters)), letters


def _side(term: str, groups: tuple[str, ...], shape: Shape) -> _Side:
    wanted = "".join(groups)
    summed = tuple(i for i, letter in enumerate(term) if letter not in wanted)
    rest = "".join(letter for letter in term if letter in wanted)
    return _Side(summed, () if rest == wanted else tuple(rest.index(letter) for letter in wanted), shape)


def diagonal_view(array: Array, letters: str) -> tuple[Array, str]:
    """The view in which a letter that stands several times is one axis: the diagonal of its axes.

    Args:
        array: axes of one letter have one length.
        letters: one for each axis.
    """
    unique = "".join(dict.fromkeys(letters))
    if unique == letters:
        return array, letters
    shape = [array.shape[letters.index(letter)] for letter in unique]
    strides = [
        sum(stride for other, stride in zip(letters, array.strides) if other == letter) for letter in unique
    ]
    as_strided = backend.xp(array).lib.stride_tricks.as_strided
    return cast(Array, as_strided(array, shape, strides)), unique
