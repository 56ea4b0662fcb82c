"""`psf.pipeline.balance`: cuts a model so that its stages take the same time, or the same memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Final, Literal

from psframework.errors import ArgumentError
from psframework.nn import Sequential
from psframework.pipeline.measure import Cost, Loss, measure
from psframework.pipeline.partition import check_parts, check_sequential, cut
from psframework.pipeline.trees import Tree

By = Literal["time", "memory"]
_MEASURES: Final = ("time", "memory")
_MIB: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Balance:
    """How a model was cut. `str()` of it is a table.

    Attributes:
        sizes: layers of each stage, for `split_sequential`.
        seconds: forward and backward of each layer with one micro-batch.
        nbytes: for each layer parameters, gradients, and about what one micro-batch keeps for backward.
    """

    sizes: list[int]
    seconds: list[float]
    nbytes: list[int]

    @property
    def stages(self) -> list[tuple[float, int]]:
        """(seconds, nbytes) of each stage."""
        return [(sum(self.seconds[a:b]), sum(self.nbytes[a:b])) for a, b in self._borders()]

    @property
    def slowest(self) -> float:
        """Time of the slowest stage over the mean: 1 is a perfect balance, by which no stage waits."""
        times = [seconds for seconds, _ in self.stages]
        mean = sum(times) / len(times)
        return max(times) / mean if mean else 1.0

    def __str__(self) -> str:
        rows = [
            f"{stage:>5}  {_span(a, b):<9}  {seconds * 1e3:>10.3f} ms  {nbytes / _MIB:>9.1f} MiB"
            for stage, ((a, b), (seconds, nbytes)) in enumerate(zip(self._borders(), self.stages))
        ]
        header = f"stage  layers     {'time':>13}  {'memory':>13}"
        return "\n".join([header, *rows, f"slowest stage: {self.slowest:.2f} x the mean"])

    def _borders(self) -> list[tuple[int, int]]:
        return list(pairwise(accumulate(self.sizes, initial=0)))


def balance(
    model: Sequential,
    sample: Tree,
    stages: int,
    *,
    by: By = "time",
    loss: Loss | None = None,
    repetitions: int = 5,
    memory_limit: int | None = None,
) -> Balance:
    """Measures the layers of a model on this machine, and cuts it into stages of about the same cost.

        print(psf.pipeline.balance(model, (x[:32], y[:32]), stages=3, loss=F.cross_entropy))

    Afterwards the model's parameters, gradients, buffers and mode are as before, and so are the process's
    random numbers.

    Args:
        model: an `nn.Sequential`; its layers are not cut.
        sample: one micro-batch, as large as those of training: a tree of arrays; with `loss` a tuple of that
            and its targets.
        stages: how many.
        by: "time": the slowest stage is as fast as can be; "memory": the largest as small as can be.
        loss: of (outputs, targets); its time counts with the last layer.
        repetitions: how often each layer is run; the median counts.
        memory_limit: bytes that no stage may exceed.

    Raises:
        ArgumentError: the model is no Sequential, has fewer layers than stages, or no cut keeps to the limit.
    """
    check_sequential(model)
    check_parts(len(model), stages)
    if by not in _MEASURES:
        raise ArgumentError(f"by={by!r} is none of {', '.join(_MEASURES)}")
    return arranged(measure(model, sample, loss, repetitions), stages, by, memory_limit)


def arranged(costs: Sequence[Cost], stages: int, by: By = "time", memory_limit: int | None = None) -> Balance:
    """The best cut of layers with these costs; arguments and errors are those of `balance`."""
    seconds, nbytes = [cost.seconds for cost in costs], [cost.nbytes for cost in costs]
    sizes = cut(seconds if by == "time" else nbytes, stages, nbytes, memory_limit)
    return Balance(sizes, seconds, nbytes)


def _span(start: int, stop: int) -> str:
    """Words for the layers of a stage."""
    return str(start) if stop == start + 1 else f"{start}-{stop - 1}"
