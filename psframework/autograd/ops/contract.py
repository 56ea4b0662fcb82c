"""Sums of products of arrays by labels: what `einsum` and its gradients are computed by."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import combinations
from math import prod
from typing import cast

from psframework import backend
from psframework.autograd.ops.matmul import product
from psframework.backend import Array


def contract(arrays: Sequence[Array], labels: Sequence[str], output: str) -> Array:
    """The sum of products of arrays, two at a time, as batches of matrix products.

    Args:
        arrays: one or more, of one dtype that is not of 16 bits.
        labels: of each, a letter an axis, none twice in one array; a letter means one length everywhere.
        output: the letters of the result, each of which some array has; all others are summed over.
    """
    terms = list(zip(arrays, labels))
    sizes = {letter: n for array, term in terms for letter, n in zip(term, array.shape)}
    for i, j in _path(tuple(labels), output, tuple(sorted(sizes.items()))):
        b, a = terms.pop(j), terms.pop(i)
        terms.append(_pair(a, b, frozenset(output).union(*(term for _, term in terms)), sizes))
    array, term = _without(terms[0], frozenset(output))
    return array if term == output else array.transpose([term.index(letter) for letter in output])


@lru_cache(maxsize=1024)
def _path(labels: tuple[str, ...], output: str, sizes: tuple[tuple[str, int], ...]) -> list[tuple[int, int]]:
    """Which two to multiply at each step: those whose result is smallest beside them, then the cheapest."""
    size, terms, path = dict(sizes), list(labels), []

    def count(letters: frozenset[str]) -> int:
        return prod(size[letter] for letter in letters)

    def kept(i: int, j: int) -> frozenset[str]:
        others = frozenset(output).union(*(t for k, t in enumerate(terms) if k not in (i, j)))
        return frozenset(terms[i] + terms[j]) & others

    def cost(pair: tuple[int, int]) -> tuple[int, int]:
        first, second = (frozenset(terms[k]) for k in pair)
        return count(kept(*pair)) - count(first) - count(second), count(first | second)

    while len(terms) > 1:
        i, j = min(combinations(range(len(terms)), 2), key=cost)
        path.append((i, j))
        both = "".join(kept(i, j))
        del terms[j], terms[i]
        terms.append(both)
    return path


Term = tuple[Array, str]


def _without(term: Term, kept: frozenset[str]) -> Term:
    """The sum over every axis that is not of a kept letter."""
    array, letters = term
    axes = tuple(i for i, letter in enumerate(letters) if letter not in kept)
    if not axes:
        return term
    total = backend.as_array(array.sum(axis=axes, dtype=array.dtype))
    return total, "".join(letter for letter in letters if letter in kept)


def _pair(a: Term, b: Term, kept: frozenset[str], sizes: dict[str, int]) -> Term:
    """The sum of products of two terms over the letters that are not kept."""
    x, x_letters = _without(a, kept.union(b[1]))
    y, y_letters = _without(b, kept.union(x_letters))
    both = [letter for letter in x_letters if letter in y_letters]
    batch = "".join(letter for letter in both if letter in kept)
    summed = "".join(letter for letter in both if letter not in kept)
    rows = "".join(letter for letter in x_letters if letter not in y_letters)
    columns = "".join(letter for letter in y_letters if letter not in x_letters)
    letters = batch + rows + columns
    if not summed:
        left = _ordered(x, x_letters, batch + rows)
        right = _ordered(y, y_letters, batch + columns)
        left = left.reshape(left.shape + (1,) * len(columns))
        right = right.reshape(right.shape[: len(batch)] + (1,) * len(rows) + right.shape[len(batch) :])
        return backend.as_array(left * right), letters
    matrices = product(
        _grouped(x, x_letters, (batch, rows, summed), sizes),
        _grouped(y, y_letters, (batch, summed, columns), sizes),
    )
    return matrices.reshape([sizes[letter] for letter in letters]), letters


def _ordered(array: Array, letters: str, order: str) -> Array:
    return array if letters == order else array.transpose([letters.index(letter) for letter in order])


def _grouped(array: Array, letters: str, groups: tuple[str, str, str], sizes: dict[str, int]) -> Array:
    """The axes of each group made one; the first group is left out if it is empty."""
    shape = [prod(sizes[letter] for letter in group) for group in groups]
    return _ordered(array, letters, "".join(groups)).reshape(shape if groups[0] else shape[1:])


def diagonal_view(array: Array, letters: str) -> Term:
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
