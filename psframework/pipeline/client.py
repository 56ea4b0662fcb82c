"""`cluster.pipeline(...)`: what users have of a pipe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from psframework.pipeline.blueprint import blueprint
from psframework.pipeline.driver import Driver
from psframework.pipeline.placement import Cluster
from psframework.pipeline.plan import Report
from psframework.pipeline.spec import PipelineOptions
from psframework.pipeline.trees import Tree


class Pipeline:
    """A model that trains in stages on several services. Made by `cluster.pipeline`.

        pipe = await cluster.pipeline([(Encoder, (64,)), (Decoder, (64,))], loss=F.cross_entropy,
                                      optimizer=optim.SGD(lr=0.1), microbatches=8)
        loss = await pipe.step(x, y)

    Args:
        driver: of the pipe.
    """

    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    async def step(self, x: Tree, y: Tree, timeout: float | None = None) -> float:
        """Trains on one batch; returns its loss, the mean over its rows.

        Args:
            x: inputs of the first stage: an array of shape (rows, ...), or a tuple or dict of them.
            y: targets, likewise.
            timeout: seconds; None: the pipeline's.
        """
        return await self._driver.step(x, y, timeout)

    async def infer(self, x: Tree, timeout: float | None = None) -> Tree:
        """What the model answers in evaluation mode, row by row as in `x`."""
        return await self._driver.infer(x, timeout)

    async def state_dict(self, timeout: float | None = None) -> dict[str, Any]:
        """Parameters and buffers of all stages by name.

        Listed stages are named by their numbers, {"0.weight": array, ...}, as an nn.Sequential of them would
        be; an nn.Sequential that was cut has the names that it has as a whole.
        """
        return await self._driver.state_dict(timeout)

    async def load_state_dict(self, state: Mapping[str, Any], timeout: float | None = None) -> None:
        """Gives all stages the values of a state, as `state_dict` gives it; optimizers go on.

        Raises:
            ModelMismatch: names or shapes differ.
        """
        await self._driver.load_state_dict(state, timeout)

    @property
    def reports(self) -> Sequence[Report]:
        """What each service told of the newest run: times of its actions, most activations that it kept."""
        return self._driver.reports

    async def close(self) -> None:
        """Frees the stages; a second time does nothing."""
        await self._driver.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


async def open_pipeline(
    cluster: Cluster, model: Any, stages: int | None, options: PipelineOptions, timeout: float
) -> Pipeline:
    """What `cluster.pipeline` does."""
    return Pipeline(await Driver.open(cluster, blueprint(model, stages, options), options, timeout))
