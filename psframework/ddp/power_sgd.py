"""PowerSGD: gradients travel as products of thin matrices (Vogels et al., arXiv:1905.13727)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from psframework.backend import Array, array_like, asnumpy, xp
from psframework.collective.ops import ReduceOp
from psframework.ddp.bucket import Bucket
from psframework.ddp.compression import Compression, aside
from psframework.ddp.low_rank import expand, fresh, orthonormal, pays, refill
from psframework.ddp.residuals import finite
from psframework.errors import ArgumentError
from psframework.optim.scaler import GradScaler


@dataclass(slots=True)
class _Matrix:
    """A parameter that travels as p.T @ q."""

    name: str
    cut: slice  # of the bucket
    shape: tuple[int, int]
    p: Array
    q: Array

    def of(self, flat: Array) -> Array:
        return flat[self.cut].reshape(self.shape)


class PowerSGD(Compression):
    """Each matrix of gradients M travels as p.T @ q, of few rows each; small parameters travel as they are.

    One power iteration a step, which goes on from the step before (warm start): p is the average over ranks
    of M q, made orthonormal, and q the average of pT M. What that leaves of M is the residual. Of a
    parameter of more axes, the first one is the rows of M. Two collectives for a bucket.

    Args:
        rank: rows of p and q; more is more exact, and more bytes.
        start: so many steps are averaged without compression first: gradients change most then.
        seed: of the first q.
        scaler: of the losses, if they are scaled.
    """

    def __init__(
        self, rank: int = 2, start: int = 10, *, seed: int = 0, scaler: GradScaler | None = None
    ) -> None:
        super().__init__(scaler)
        if rank < 1 or start < 0:
            raise ArgumentError(
                f"PowerSGD: rank must be at least 1 and start at least 0, not {rank}, {start}"
            )
        self._rank, self._start, self._seed = rank, start, seed
        self._step = 0
        self._q: dict[str, Array] = {}

    def __repr__(self) -> str:
        return f"PowerSGD(rank={self._rank}, start={self._start})"

    async def _reduce(self, bucket: Bucket) -> int:
        step = self._step + 1 if bucket.index == 0 else self._step
        if step <= self._start or not any(pays(each.shape, self._rank) for each in bucket.parameters):
            await self._averaged(bucket, bucket.buffer, step)
            return int(bucket.buffer.nbytes)
        total, matrices, first = await aside(bucket, self._project, bucket, step)
        await self._averaged(bucket, first, step)
        second = await aside(bucket, _project_back, total, matrices, first)
        await bucket.group.all_reduce(second, ReduceOp.AVG)
        await aside(bucket, self._finish, bucket, total, matrices, first, second)
        return int(first.nbytes + second.nbytes)

    async def _averaged(self, bucket: Bucket, array: Array, step: int) -> None:
        """The first collective for a bucket. A step counts once it ended well: so all ranks count alike."""
        await bucket.group.all_reduce(array, ReduceOp.AVG)
        self._step = step

    def _project(self, bucket: Bucket, step: int) -> tuple[Array, list[_Matrix], Array]:
        """Gradients and residual; the matrices with their p; what all ranks average first."""
        total = self._residuals.added(bucket)
        matrices = [
            self._matrix(name, start, parameter.shape, total, step)
            for name, start, parameter in zip(bucket.names, bucket.starts, bucket.parameters)
            if pays(parameter.shape, self._rank)
        ]
        dense = [total[cut] for cut in _between(matrices, total.size)]
        parts = [*dense, *(matrix.p.reshape(-1) for matrix in matrices)]
        return total, matrices, cast(Array, xp(total).concatenate(parts))

    def _matrix(self, name: str, start: int, shape: Sequence[int], total: Array, step: int) -> _Matrix:
        cut = slice(start, start + math.prod(shape))
        gradient = total[cut].reshape(shape[0], -1)
        wanted = self._rank, gradient.shape[1]
        q = self._q.get(name)
        if q is None:
            q = fresh(self._seed, name, wanted, gradient)
        elif q.shape != wanted:
            raise ArgumentError(f"the state of PowerSGD has a q of shape {q.shape} for {name}, not {wanted}")
        else:
            q = array_like(q, gradient)
        q = orthonormal(q, gradient.dtype)
        refill(q, self._seed, name, step)
        return _Matrix(name, cut, gradient.shape, q @ gradient.T, q)

    def _finish(
        self, bucket: Bucket, total: Array, matrices: list[_Matrix], first: Array, second: Array
    ) -> None:
        """Buffer, residual and the next step's q, from what all ranks averaged."""
        residual = self._residuals.of(bucket) if finite(first, second) else None
        end = 0
        for cut in _between(matrices, total.size):
            start, end = end, end + cut.stop - cut.start
            bucket.buffer[cut] = first[start:end]
        end = 0
        for matrix in matrices:
            start, end = end, end + matrix.q.size
            matrix.q = second[start:end].reshape(matrix.q.shape).copy()
            rest = None if residual is None else matrix.of(residual)
            expand(matrix.p, matrix.q, matrix.of(total), matrix.of(bucket.buffer), rest)
            if residual is not None:
                self._q[matrix.name] = matrix.q

    def state_dict(self) -> dict[str, Any]:
        """Residuals of this rank, and what all ranks have alike: the number of the step, and each q."""
        q = {name: asnumpy(array).copy() for name, array in self._q.items()}
        return {**super().state_dict(), "step": self._step, "q": q}

    def _load(self, state_dict: Mapping[str, Any]) -> None:
        super()._load(state_dict)
        self._step = int(state_dict["step"])
        self._q = {name: array.copy() for name, array in state_dict["q"].items()}


def _between(matrices: Sequence[_Matrix], size: int) -> list[slice]:
    """What of a bucket belongs to no matrix."""
    borders = [0]
    for cut in sorted((matrix.cut for matrix in matrices), key=lambda cut: int(cut.start)):
        borders += [cut.start, cut.stop]
    borders.append(size)
    return [slice(a, b) for a, b in zip(borders[::2], borders[1::2]) if a < b]


def _project_back(total: Array, matrices: Sequence[_Matrix], first: Array) -> Array:
    """Gives the matrices their p of all ranks; the q of this rank, which all ranks average then."""
    end = first.size - sum(matrix.p.size for matrix in matrices)
    parts = []
    for matrix in matrices:
        start, end = end, end + matrix.p.size
        matrix.p = orthonormal(first[start:end].reshape(matrix.p.shape), total.dtype)
        matrix.q = matrix.p @ matrix.of(total)
        parts.append(matrix.q.reshape(-1))
    return cast(Array, xp(total).concatenate(parts))
