"""Averages of gradients of which each rank has other rows: embeddings with sparse=True."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from psframework.autograd.sparse import SparseRows
from psframework.autograd.tensor import Tensor
from psframework.backend import Array, asnumpy, is_narrow, widen, xp
from psframework.collective.ops import ReduceOp
from psframework.ddp.bucket import Ranks
from psframework.errors import ArgumentError
from psframework.nn.module import Module

_NONE: Final = -1
_DENSE: Final = -2


def sparse_names(module: Module) -> Sequence[str]:
    """Parameters that get SparseRows: tables made with sparse=True."""
    return [
        f"{path}.weight".lstrip(".")
        for path, each in module.named_modules()
        if getattr(each, "sparse", False) is True and isinstance(getattr(each, "weight", None), Tensor)
    ]


async def average_tables(tables: Sequence[Tensor], group: Ranks, scale: float) -> None:
    """Makes the `grad` of tables the average over all ranks, times `scale`."""
    averages = await average_sparse([table.grad for table in tables], tables, group, scale)
    for table, gradient in zip(tables, averages, strict=True):
        table.grad = gradient


async def average_sparse(
    gradients: Sequence[SparseRows | Array | None],
    parameters: Sequence[Tensor],
    group: Ranks,
    scale: float = 1.0,
    *,
    wide: bool = False,
) -> list[SparseRows | Array | None]:
    """The average over all ranks of the gradients of some parameters; the same bits on all ranks.

    The ranks first tell each other how many rows each has. Rows and values are then gathered, padded to the
    rank that has most, and equal rows added in rank order.

    Args:
        gradients: this rank's.
        parameters: whose they are, the same on all ranks.
        group: the ranks.
        scale: what the averages are multiplied by.
        wide: whether those of 16-bit parameters are float32.

    Returns:
        SparseRows; an array where a rank has one, as for a table that is also used by a dense layer; None
        where no rank has a gradient.
    """
    mine = [each.coalesce() if isinstance(each, SparseRows) else each for each in gradients]
    counts = asnumpy(await group.all_gather(np.array([_count(each) for each in mine], np.int64)))
    averages: list[SparseRows | Array | None] = []
    for column, gradient, parameter in zip(counts.T.tolist(), mine, parameters, strict=True):
        if max(column) == _NONE and min(column) == _NONE:
            averages.append(None)
        elif _DENSE in column:
            averages.append(await _dense(gradient, _zero(parameter, wide), group, scale))
        else:
            averages.append(await _rows(gradient, _zero(parameter, wide), group, scale, column))
    return averages


def _count(gradient: SparseRows | Array | None) -> int:
    if gradient is None:
        return _NONE
    return len(gradient.rows) if isinstance(gradient, SparseRows) else _DENSE


def _zero(parameter: Tensor, wide: bool) -> Array:
    """Zeros like its gradient, which take no memory."""
    dtype = np.dtype(np.float32) if wide and is_narrow(parameter.dtype) else parameter.dtype
    namespace = xp(parameter.data)
    return namespace.broadcast_to(namespace.zeros((), dtype), parameter.shape)  # type: ignore[no-any-return]


async def _dense(gradient: Any, zero: Array, group: Ranks, scale: float) -> Array:
    if gradient is None:
        array: Array = zero.copy()
    else:
        array = gradient.to_dense() if isinstance(gradient, SparseRows) else gradient
    await group.all_reduce(array, ReduceOp.AVG)
    if scale != 1:
        array *= scale
    return array


async def _rows(gradient: Any, zero: Array, group: Ranks, scale: float, counts: Sequence[int]) -> SparseRows:
    """Of ranks that have rows, or nothing."""
    namespace, most = xp(zero), max(*counts, 0)
    rows = namespace.zeros(most, np.int64)
    values = namespace.zeros((most, *zero.shape[1:]), zero.dtype)
    if gradient is not None:
        if gradient.shape != zero.shape:
            raise ArgumentError(f"gradient of shape {gradient.shape} for a parameter of {zero.shape}")
        rows[: len(gradient.rows)] = gradient.rows
        values[: len(gradient.rows)] = gradient.values
    if most:
        rows, values = await asyncio.gather(group.all_gather(rows), group.all_gather(values))
        here = [(rank, max(count, 0)) for rank, count in enumerate(counts)]
        rows = namespace.concatenate([rows[rank, :count] for rank, count in here])
        values = namespace.concatenate([values[rank, :count] for rank, count in here])
    total = SparseRows(rows, widen(values), zero.shape).coalesce()
    averages = total.values * (scale / group.size) if scale != 1 else total.values / group.size
    return SparseRows(total.rows, averages.astype(zero.dtype, copy=False), zero.shape, True)
