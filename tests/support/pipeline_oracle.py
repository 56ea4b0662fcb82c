"""What a pipeline must equal: one process that goes through the micro-batches in a loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import psframework as psf
from psframework import nn, optim
from psframework.autograd.sparse import SparseRows
from psframework.backend import widen
from psframework.nn.random import drawing_from
from psframework.pipeline.microbatch import split
from psframework.pipeline.spec import Stage
from psframework.pipeline.trees import called, mapped


def modules(stages: Sequence[Any]) -> list[nn.Module]:
    """Those of listed stages."""
    found = []
    for item in stages:
        stage = item if isinstance(item, Stage) else Stage(*item)
        found.append(stage.module(*stage.args, **stage.kwargs))  # type: ignore[operator]
    return found


def adam(*parameters: Any, lr: float = 1e-2) -> optim.Adam:
    """Adam that does not magnify rounding.

    An update is lr * g / (abs(g) + eps), whose slope is lr / eps where g is near
    0: with the default of 1e-8 a rounding error of 1e-17 in such a gradient is one
    of 1e-11 in the parameter, whoever computes it.
    """
    return optim.Adam(*parameters, lr=lr, eps=1e-3)


class Oracle:
    """One process.

    Args:
        stages: modules, in order.
        loss: as the pipeline's.
        optimizer: makes one for parameters.
        microbatches: how many.
        seed: of dropout: the pipeline's; None: none is needed.
    """

    def __init__(
        self,
        stages: Sequence[nn.Module],
        loss: Callable[..., psf.Tensor],
        optimizer: Callable[..., optim.Optimizer],
        microbatches: int = 8,
        seed: int | None = None,
    ) -> None:
        self.stages = stages
        self.whole = nn.Sequential(*stages)
        self.optimizer = optimizer(self.whole.parameters())
        self.steps = 0
        self._loss, self._microbatches, self._seed = loss, microbatches, seed

    def gradients(self, x: Any, y: Any, scale: float = 1.0, dtype: Any = None) -> float:
        """Leaves the gradients of a batch; returns its loss."""
        batch = split(x, y, self._microbatches)
        self.optimizer.zero_grad()
        total = 0.0
        sums: dict[Any, Any] = {}
        for number, (inputs, targets, weight) in enumerate(zip(batch.inputs, batch.targets, batch.weights)):
            outputs = self.forward(inputs, number, dtype)
            if dtype is not None:
                outputs = outputs.astype(np.float32)
            loss = self._loss(outputs, targets)
            loss.backward(np.asarray(weight * scale, loss.dtype))
            total += weight * float(loss.data)
            for parameter in self.whole.parameters():
                if parameter.grad is not None:
                    rows = isinstance(parameter.grad, SparseRows)
                    wide = parameter.grad if rows else widen(parameter.grad)
                    sums[parameter] = wide + sums[parameter] if parameter in sums else wide
                    parameter.grad = None
        for parameter, gradient in sums.items():
            parameter.grad = gradient
        return total

    def step(self, x: Any, y: Any) -> float:
        """As the pipe's."""
        total = self.gradients(x, y)
        self.optimizer.step()
        self.steps += 1
        return total

    def forward(self, inputs: Any, microbatch: int, dtype: Any = None) -> Any:
        """All stages, one after the other."""

        def tensor(leaf: Any) -> Any:
            if not isinstance(leaf, np.ndarray):
                return leaf
            return psf.tensor(leaf if dtype is None or leaf.dtype.kind != "f" else leaf.astype(dtype))

        given = mapped(tensor, inputs)
        for index, stage in enumerate(self.stages):
            key = [self._seed or 0, index, self.steps, microbatch]
            with drawing_from(np.random.default_rng(key)):
                given = called(stage, given)
        return given

    def difference(self, state: dict[str, np.ndarray]) -> float:
        """The largest between the pipe's state and this one's."""
        own = self.whole.state_dict()
        assert state.keys() == own.keys()
        return max(float(np.abs(state[name].astype(float) - own[name].astype(float)).max()) for name in own)
