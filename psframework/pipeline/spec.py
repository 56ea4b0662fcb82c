"""How users describe a pipeline. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from psframework.nn.module import Module
from psframework.optim.optimizer import Optimizer
from psframework.pipeline.balance import Balance
from psframework.rpc.values.types import register_type


@dataclass(frozen=True)
class Stage:
    """One stage of a pipeline, with more than a class and its arguments.

    Args:
        module: a class registered with `@psf.remote`, or a Module, which is copied to its service.
        args: of the class.
        kwargs: of the class.
        recompute: keep only the inputs of a micro-batch, and run the forward again in backward.
        replicas: services that share its micro-batches: the first, second, ... in turns. Buffers, such as the
            running mean of BatchNorm, are those of the first after each step.
        parameter_server: the name under which the parameters are kept, and updated, on a parameter server;
            the values that it has under the name, if any, win. Empty: on the stage's own service.
    """

    module: type[Module] | Module
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    recompute: bool = False
    replicas: int = 1
    parameter_server: str = ""


@register_type(name="psframework.pipeline.PipelineOptions")
@dataclass(frozen=True)
class PipelineOptions:
    """How a pipeline runs; what `cluster.pipeline` was given.

    Args:
        loss: a registered function of (outputs, targets): the mean over a micro-batch.
        optimizer: a description, such as `optim.SGD(lr=0.1)`; None: parameters stay as they are.
        schedule: "gpipe", "1f1b", "eager-1f1b", "interleaved" or "zb-h1".
        microbatches: into how many a batch is cut.
        virtual_stages: stages of each service.
        on: names of the services that hold the stages; None: those that are there.
        commit_every: steps between two commits.
        timeout: default seconds of a step.
        balance: how an nn.Sequential is cut: what `psf.pipeline.balance` found, or how many layers each stage
            has; None: by the bytes of its parameters.
        ties: parameters of several stages that are one, by their names in the state of the pipeline:
            [("0.embedding.weight", "2.head.weight")]. The values of that in the first stage count. A
            Parameter object that is in several stages is found without being named.
        precision: "bfloat16" or "float16": what the stages compute in. The loss is computed, gradients are
            summed and parameters are updated in float32; with "float16" the loss is scaled, and a step whose
            gradients overflow leaves all parameters as they are. None: as the modules are.
        max_norm: gradients are scaled so that their norm, over all stages, is at most this; None: they
            are not.
        recompute: for all stages: see Stage.
        infer_rows: most rows of requests for inference that run together; a request of more goes alone.
        driver: the pipeline service that drives it, or "here" for this process; None: the first such service
            if there is one.
        name: under which other clients of the job find it at the service that drives it; empty: they don't.
    """

    loss: Callable[..., Any] | str | None = None
    optimizer: Optimizer | None = None
    schedule: str = "1f1b"
    microbatches: int = 8
    virtual_stages: int = 1
    on: Sequence[str] | None = None
    commit_every: int = 1
    timeout: float = 60.0
    balance: Balance | Sequence[int] | None = None
    ties: Sequence[Sequence[str]] = ()
    precision: str | None = None
    max_norm: float | None = None
    recompute: bool = False
    infer_rows: int = 256
    driver: str | None = None
    name: str = ""
