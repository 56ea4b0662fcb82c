"""How users describe the stages of a pipeline, and the plan that is made of it. No I/O."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from psframework.errors import ArgumentError
from psframework.nn.module import Module
from psframework.optim.optimizer import Optimizer
from psframework.pipeline.plan import StagePlan

ROLE: Final = "pipeline-stage"


@dataclass(frozen=True)
class Stage:
    """One stage of a pipeline, with more than a class and its arguments.

    Args:
        module: a class registered with `@psf.remote`, or a Module, which is copied to its service.
        args: of the class.
        kwargs: of the class.
        recompute: keep only the inputs of a micro-batch, and run the forward again in backward.
    """

    module: type[Module] | Module
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    recompute: bool = False


@dataclass(frozen=True)
class PipelineOptions:
    """How a pipeline runs; what `cluster.pipeline` was given.

    Args:
        loss: a registered function of (outputs, targets): the mean over a micro-batch.
        optimizer: a description, such as `optim.SGD(lr=0.1)`; None: parameters stay as they are.
        schedule: "gpipe", "1f1b", "interleaved" or "zb-h1".
        microbatches: into how many a batch is cut.
        virtual_stages: stages of each service.
        on: names of the services that hold the stages; None: those that are there.
        commit_every: steps between two commits.
        timeout: default seconds of a step.
    """

    loss: Callable[..., Any] | str | None = None
    optimizer: Optimizer | None = None
    schedule: str = "1f1b"
    microbatches: int = 8
    virtual_stages: int = 1
    on: Sequence[str] | None = None
    commit_every: int = 1
    timeout: float = 60.0


def stage_list(model: Any, stages: int | None) -> list[Stage]:
    """The stages that a user listed.

    Args:
        model: a list of Stages, Modules or (class, args) or (class, args, kwargs).
        stages: how many; None: as many as are listed.

    Raises:
        ArgumentError: it is something else.
    """
    if not isinstance(model, Sequence) or not model:
        raise ArgumentError(
            "a pipeline takes a list of stages, such as [(Encoder, (64,)), (Decoder, (64,))], or an "
            f"nn.Sequential with stages=; not {type(model).__name__}"
        )
    listed = [_stage(number, item) for number, item in enumerate(model)]
    if stages is not None and stages != len(listed):
        raise ArgumentError(f"stages={stages}, but {len(listed)} are listed: leave it out")
    return listed


def plans_of(stages: Sequence[Stage], options: PipelineOptions) -> list[StagePlan]:
    """What the ranks make of them."""
    rule = None if options.optimizer is None else options.optimizer.rule.spec()
    last = len(stages) - 1
    return [
        StagePlan(
            number,
            stage.module,
            tuple(stage.args),
            dict(stage.kwargs),
            rule,
            options.loss if number == last else None,
            stage.recompute,
        )
        for number, stage in enumerate(stages)
    ]


def _stage(number: int, item: Any) -> Stage:
    if isinstance(item, Stage):
        return item
    if isinstance(item, Module) or (inspect.isclass(item) and issubclass(item, Module)):
        return Stage(item)
    if isinstance(item, tuple) and item and inspect.isclass(item[0]) and issubclass(item[0], Module):
        return Stage(*item)
    raise ArgumentError(
        f"stage {number} is {item!r:.100}: give a class of Modules with its arguments, (Stage, (64,)), "
        "a Module, or a psf.pipeline.Stage"
    )
