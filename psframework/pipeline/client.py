"""`cluster.pipeline(...)`: what users have of a pipe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from os import PathLike
from types import TracebackType
from typing import Any, Protocol, Self

from psframework.autograd.picture import Drawing
from psframework.errors import ArgumentError
from psframework.nn.random import generator
from psframework.pipeline import timeline
from psframework.pipeline.blueprint import blueprint
from psframework.pipeline.driver import Driver
from psframework.pipeline.outcome import Outcome
from psframework.pipeline.placement import Cluster
from psframework.pipeline.service_driver import ServiceDriver, driver_service
from psframework.pipeline.spec import PipelineOptions
from psframework.pipeline.trees import Tree


class Drives(Protocol):
    """What drives a pipe, here or on a service: see `Driver`."""

    @property
    def services(self) -> tuple[str, ...]: ...
    async def step(
        self, x: Tree, y: Tree, timeout: float | None = None, *, update: bool = True
    ) -> Outcome: ...
    async def evaluate(self, x: Tree, y: Tree, timeout: float | None = None) -> float: ...
    async def infer(self, x: Tree, timeout: float | None = None) -> Tree: ...
    async def state_dict(self, timeout: float | None = None) -> dict[str, Any]: ...
    async def load_state_dict(self, state: Mapping[str, Any], timeout: float | None = None) -> None: ...
    async def statistics(self) -> dict[str, int]: ...
    async def close(self) -> None: ...


class Pipeline:
    """A model that trains in stages on several services. Made by `cluster.pipeline`.

        pipe = await cluster.pipeline([(Encoder, (64,)), (Decoder, (64,))], loss=F.cross_entropy,
                                      optimizer=optim.SGD(lr=0.1), microbatches=8)
        loss = await pipe.step(x, y)

    An async context manager; leaving it closes. All times are seconds; `timeout=None` is the pipeline's.

    Args:
        driver: of the pipe.
    """

    def __init__(self, driver: Drives) -> None:
        self._driver = driver
        self._newest: Outcome | None = None
        self._closed = False

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"{0 if self._newest is None else self._newest.steps} steps"
        return f"<Pipeline on {', '.join(self._services)}: {state}>"

    async def step(self, x: Tree, y: Tree, timeout: float | None = None, *, update: bool = True) -> float:
        """Trains on one batch; returns its loss, the mean over its rows.

        Args:
            x: inputs of the first stage: an array of shape (rows, ...), or a tuple or dict of them.
            y: targets, likewise.
            timeout: seconds; 0: no limit.
            update: whether the parameters are updated; if not, the gradients are added to those of the next
                step, as those of losses that are added up.

        Raises:
            DeadlineExceeded: it took too long; names the stage that it waited for.
            PeerLost: a stage is gone, and nobody took its place in time; or the driver's service is.
            RemoteError: code of a stage raised; the step did not happen.
            ContextClosed: this pipeline is closed.
        """
        self._newest = await self._driver.step(x, y, timeout, update=update)
        return self._newest.loss

    async def evaluate(self, x: Tree, y: Tree, timeout: float | None = None) -> float:
        """The loss of a batch, in evaluation mode; nothing changes. Arguments and errors: see `step`."""
        return await self._driver.evaluate(x, y, timeout)

    async def infer(self, x: Tree, timeout: float | None = None) -> Tree:
        """What the model answers in evaluation mode, row by row as in `x`.

        Calls that wait at the same time are run together, up to `infer_rows` rows, where their arrays have
        the same dtypes and rows of the same shape; each gets its own rows. Steps go between such batches.

        Args:
            x: as for `step`.
            timeout: seconds; 0: no limit.
        """
        return await self._driver.infer(x, timeout)

    async def state_dict(self, timeout: float | None = None) -> dict[str, Any]:
        """Parameters and buffers of all stages by name.

        Listed stages are named by their numbers, {"0.weight": array, ...}, as an nn.Sequential of them would
        be; an nn.Sequential that was cut has the names that it has as a whole.
        """
        return await self._driver.state_dict(timeout)

    async def load_state_dict(self, state: Mapping[str, Any], timeout: float | None = None) -> None:
        """Gives all stages the values of a state, as `state_dict` gives it; optimizers go on.

        Gradients of steps without update are forgotten.

        Raises:
            ModelMismatch: names or shapes differ.
            ArgumentError: a stage has its parameters on a parameter server.
        """
        await self._driver.load_state_dict(state, timeout)

    async def statistics(self) -> dict[str, int]:
        """Counts: "steps" completed, "infer_requests", and "infer_batches" that these took."""
        return await self._driver.statistics()

    @property
    def peak_activations(self) -> dict[int, int]:
        """Of each stage: most micro-batches whose activations it kept at once, in the newest step.

        Raises:
            ArgumentError: there was no step.
        """
        return dict(self._step().peak)

    @property
    def bubble(self) -> float:
        """The share of the services' time, from 0 to 1, in which they did nothing in the newest step.

        Raises:
            ArgumentError: there was no step.
        """
        return timeline.bubble(self._step().spans)

    @property
    def spans(self) -> Sequence[timeline.Span]:
        """What each service did when in the newest step, in seconds of the driver's clock.

        Raises:
            ArgumentError: there was no step.
        """
        return self._step().spans

    def timeline(self, path: str | PathLike[str] | None = None) -> Drawing:
        """A picture of the newest step as it ran: a lane for each service, and when it was idle.

        Times are of the driver's clock; those of other hosts are right to the time that their fastest answer
        took.

        Args:
            path: of an SVG file that is written.

        Raises:
            ArgumentError: there was no step, or the path ends in another suffix than .svg.
        """
        step = self._step()
        return timeline.draw(step.spans, step.services, path)

    async def close(self) -> None:
        """Frees the stages; a second time does nothing. What runs ends with ContextClosed."""
        if not self._closed:
            self._closed = True
            await self._driver.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def _services(self) -> Sequence[str]:
        return self._driver.services if self._newest is None else self._newest.services

    def _step(self) -> Outcome:
        if self._newest is None:
            raise ArgumentError("no step of this pipeline has ended yet: `await pipe.step(x, y)` first")
        return self._newest


async def open_pipeline(
    cluster: Cluster, model: Any, stages: int | None, options: PipelineOptions, timeout: float
) -> Pipeline:
    """What `cluster.pipeline` does.

    Args:
        cluster: on whose services the stages are.
        model: the stages; None: a pipe that runs, by its name.
        stages: how many, where a Sequential is cut.
        options: how it runs.
        timeout: seconds that it may take.
    """
    service = driver_service(cluster, options)
    if model is None and options.name and service is not None:
        return Pipeline(await ServiceDriver.attach(cluster, service, options, timeout))
    plan = replace(blueprint(model, stages, options), job=cluster.job_of_names())
    seed = int(generator().integers(0, 1 << 62))
    if service is None:
        return Pipeline(await Driver.open(cluster, plan, options, seed, timeout))
    return Pipeline(await ServiceDriver.open(cluster, service, plan, options, seed, timeout))
