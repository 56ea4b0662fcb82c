"""Where a model is cut into stages."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from psframework.errors import ArgumentError
from psframework.nn import Module, Sequential


def cut(
    costs: Sequence[float], parts: int, nbytes: Sequence[float] | None = None, limit: float | None = None
) -> list[int]:
    """Sizes of contiguous parts, each of at least one item, whose largest sum is as small as can be.

    Of several such cuts it is the most even one: that of the least sum of squares.

    Args:
        costs: what each item costs: numbers, at least 0.
        parts: how many, at least 1 and no more than items.
        nbytes: what each item takes of `limit`; its cost if None.
        limit: what the items of a part may take together; None: any amount.

    Raises:
        ArgumentError: a cost is negative or not finite, there are fewer items than parts, or no cut keeps to
            the limit.
    """
    check_parts(len(costs), parts)
    until, taken = _sums(costs), _sums(costs if nbytes is None else nbytes)
    most = np.inf if limit is None else limit
    least = _least(taken, parts, np.maximum, lambda sums, i: sums)[0]
    if least > most:
        raise ArgumentError(
            f"cut into {parts} stages, one of them has {least:,.0f} bytes at least, and the limit is "
            f"{most:,.0f}: use more stages, or smaller micro-batches"
        )

    def fits(sums: Any, i: int) -> Any:
        return np.where(taken[i] - taken[:i] <= most, sums, np.inf)

    largest = _least(until, parts, np.maximum, fits)[0]
    return _least(until, parts, np.add, lambda sums, i: np.where(fits(sums, i) <= largest, sums**2, np.inf))[
        1
    ]


def check_parts(layers: int, parts: int) -> None:
    """Raises ArgumentError unless each of `parts` stages gets a layer."""
    if isinstance(parts, bool) or not isinstance(parts, int) or not 1 <= parts <= layers:
        raise ArgumentError(
            f"{layers} layers can't be cut into {parts} stages: each stage needs at least one layer"
        )


def _sums(costs: Sequence[float]) -> Any:
    """What the first i items cost together, for each i."""
    each = np.asarray(costs, np.float64)
    if not np.isfinite(each).all() or (each < 0).any():
        raise ArgumentError(f"costs must be numbers of at least 0, not {list(costs)}")
    return np.concatenate([[0.0], each.cumsum()])


def _least(until: Any, parts: int, together: Any, price: Any) -> tuple[float, list[int]]:
    """The least price of a cut, and its sizes, by dynamic programming over the borders.

    Args:
        until: (n + 1,) float64, cost of the first i items.
        parts: how many.
        together: adds the price of one more part to that of those before it.
        price: of the parts that end before item i, from their sums and i.
    """
    n = len(until) - 1
    best = np.full(n + 1, np.inf)  # of i items in as many parts as were looked at so far
    best[0] = 0
    choices = []
    for part in range(1, parts + 1):
        following, begins = np.full(n + 1, np.inf), np.zeros(n + 1, np.int64)
        for i in range(part, n + 1):
            options = together(best[:i], price(until[i] - until[:i], i))
            begins[i] = options.argmin()
            following[i] = options[begins[i]]
        best = following
        choices.append(begins)
    borders = [n]
    for begins in reversed(choices):
        borders.append(int(begins[borders[-1]]))
    return float(best[n]), [stop - start for start, stop in pairwise(reversed(borders))]


def split_sequential(model: Sequential, sizes: Sequence[int]) -> list[Sequential]:
    """The stages of a model: its layers, shared and not copied, under their names in the model.

    So the names of a stage's state are names of the model's: "3.weight". A Sequential inside is one layer.

    Args:
        model: an `nn.Sequential`.
        sizes: layers of each stage, at least 1, all layers together.

    Raises:
        ArgumentError: it is no plain Sequential, or the sizes are not those of its layers.
    """
    check_sequential(model)
    if not sizes or min(sizes) < 1 or sum(sizes) != len(model):
        raise ArgumentError(
            f"stages of {list(sizes)} layers are not the model's {len(model)}: give each stage at least one "
            "layer, and each layer a stage"
        )
    stages = [model[start:stop] for start, stop in pairwise(accumulate(sizes, initial=0))]
    for stage in stages:
        stage.training = model.training
    return stages


def check_sequential(model: Module) -> None:
    """Raises ArgumentError unless the model is what its layers do one after the other."""
    if not isinstance(model, Sequential) or type(model).forward is not Sequential.forward:
        raise ArgumentError(
            f"only an nn.Sequential can be cut into stages, and {type(model).__name__} has a forward of its "
            "own: list the stages yourself"
        )
