"""The plan of a pipeline, made of what the user described, and checked before anything is placed. No I/O."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from psframework.errors import ArgumentError
from psframework.nn.layers.container import Sequential
from psframework.nn.module import Module
from psframework.optim.optimizer import Optimizer
from psframework.pipeline.balance import Balance
from psframework.pipeline.naming import Naming
from psframework.pipeline.partition import check_sequential, cut, split_sequential
from psframework.pipeline.plan import StagePlan, Tie
from psframework.pipeline.schedule import actions
from psframework.pipeline.skips import routes
from psframework.pipeline.spec import PipelineOptions, Stage
from psframework.pipeline.ties import tied_parameters
from psframework.rpc.values.types import register_type

PRECISIONS: Final = ("bfloat16", "float16")


@register_type(name="psframework.pipeline.Blueprint")
@dataclass(frozen=True)
class Blueprint:
    """A pipeline before it has a place.

    Attributes:
        stages: in order.
        replicas: of each rank.
        ties: parameters that are one.
        naming: of its state.
        job: of the program that it is for.
    """

    stages: Sequence[StagePlan]
    replicas: Sequence[int]
    ties: tuple[Tie, ...]
    naming: Naming
    job: str = ""

    def check_loss(self) -> None:
        """Raises ArgumentError if there is no loss."""
        if self.stages[-1].loss is None:
            raise ArgumentError("this pipeline has no loss: open it with loss=, such as F.cross_entropy")

    def check_loads(self) -> None:
        """Raises ArgumentError if a state can't be loaded."""
        for stage in self.stages:
            if stage.parameter_server:
                raise ArgumentError(
                    f"stage {stage.index} has its parameters on the parameter server, as "
                    f"{stage.parameter_server!r}: what is loaded into the stage would not reach it"
                )


def blueprint(model: Any, stages: int | None, options: PipelineOptions) -> Blueprint:
    """Plans a pipeline.

    Args:
        model: a list of Stages, Modules, or (class, args) or (class, args, kwargs); or one nn.Sequential.
        stages: how many; None: as many as are listed, or as `options.balance` has.
        options: how it is to run.

    Raises:
        ArgumentError: something in it can't be right.
    """
    if isinstance(model, Sequential):
        parts = _parts(model, stages, options.balance)
        listed = [Stage(part) for part in parts]
        naming = Naming(len(parts), [list(part._modules) for part in parts])
    else:
        listed = _listed(model, stages)
        naming = Naming(len(listed))
    _check(listed, options)
    ties = _ties(listed, naming, options)
    _check_servers(listed, ties, options)
    return Blueprint(_plans(listed, options), _replicas(listed, options.virtual_stages), ties, naming)


def _parts(
    model: Sequential, stages: int | None, balance: Balance | Sequence[int] | None
) -> list[Sequential]:
    check_sequential(model)
    if balance is None:
        if stages is None:
            raise ArgumentError("an nn.Sequential needs stages=, the number that it is cut into")
        sizes = cut(_costs(model), stages)
    else:
        sizes = list(balance.sizes if isinstance(balance, Balance) else balance)
        if stages not in (None, len(sizes)):
            raise ArgumentError(f"stages={stages}, but balance= has {len(sizes)}: leave stages= out")
    return split_sequential(model, sizes)


def _costs(model: Sequential) -> list[float]:
    """Of each layer: its share of the parameters' bytes, and its share of the layers."""
    nbytes = [sum(each.data.nbytes for each in layer.parameters()) for layer in model.children()]
    total = sum(nbytes) or 1
    return [each / total + 1 / len(nbytes) for each in nbytes]


def _listed(model: Any, stages: int | None) -> list[Stage]:
    if not isinstance(model, Sequence) or isinstance(model, str) or not model:
        raise ArgumentError(
            "a pipeline takes a list of stages, such as [(Encoder, (64,)), (Decoder, (64,))], or an "
            f"nn.Sequential with stages=; not {model!r:.100}"
        )
    listed = [_stage(number, item) for number, item in enumerate(model)]
    if stages not in (None, len(listed)):
        raise ArgumentError(f"stages={stages}, but {len(listed)} are listed: leave it out")
    return listed


def _stage(number: int, item: Any) -> Stage:
    if isinstance(item, Stage):
        stage = item
    elif isinstance(item, tuple) and 1 <= len(item) <= 3:
        stage = Stage(*item)
    else:
        stage = Stage(item)
    made = stage.module
    if isinstance(made, Module) or (inspect.isclass(made) and issubclass(made, Module)):
        return stage
    raise ArgumentError(
        f"stage {number} is {item!r:.100}: give a class of Modules with its arguments, (Encoder, (64,)), "
        "a Module, or a psf.pipeline.Stage"
    )


def _check(listed: Sequence[Stage], options: PipelineOptions) -> None:
    virtual = options.virtual_stages
    if virtual < 1 or len(listed) % virtual:
        raise ArgumentError(
            f"{len(listed)} stages can't be spread over services with {virtual} virtual stages each: their "
            "number must be a multiple of that"
        )
    actions(options.schedule, 0, len(listed) // virtual, 1, virtual)  # raises if there is no such schedule
    if options.microbatches < 1:
        raise ArgumentError(f"microbatches is {options.microbatches}: a batch is cut into at least 1")
    if options.optimizer is not None and not isinstance(options.optimizer, Optimizer):
        raise ArgumentError(
            f"optimizer must be one of optim, such as optim.SGD(lr=0.1), not {options.optimizer!r}"
        )
    if options.optimizer is not None and len(options.optimizer.param_groups) > 1:
        raise ArgumentError(
            "optimizer has several groups of parameters, and a pipeline has one rule for all: describe that, "
            "such as optim.SGD(lr=0.1)"
        )
    if options.precision not in (None, *PRECISIONS):
        raise ArgumentError(f"precision={options.precision!r} is none of {', '.join(PRECISIONS)}")
    if options.max_norm is not None and not 0 <= options.max_norm < np.inf:
        raise ArgumentError(f"max_norm must be at least 0, not {options.max_norm}")


def _replicas(listed: Sequence[Stage], virtual: int) -> list[int]:
    """Of each rank."""
    ranks = len(listed) // virtual
    found = []
    for rank in range(ranks):
        counts = [stage.replicas for stage in listed[rank::ranks]]
        if min(counts) < 1 or len(set(counts)) > 1:
            raise ArgumentError(
                f"stages {', '.join(map(str, range(rank, len(listed), ranks)))} have {counts} replicas: at "
                "least 1, and stages on one service as many"
            )
        found.append(counts[0])
    return found


def _ties(listed: Sequence[Stage], naming: Naming, options: PipelineOptions) -> tuple[Tie, ...]:
    """Those that are found, of parameters that are trained, and those that were named."""
    shells = [_shell(stage) for stage in listed]
    found = [tuple(tie) for tie in tied_parameters(shells)]
    trained = [tie for tie in found if shells[tie[0][0]].get_parameter(tie[0][1]).requires_grad]
    ties = (*trained, *map(naming.tie, options.ties))
    seen: set[tuple[int, str]] = set()
    for stage, name in (place for tie in ties for place in tie):
        if (stage, name) in seen:
            raise ArgumentError(
                f"{name} of stage {stage} is in two ties: name all parameters that are one in one tie"
            )
        seen.add((stage, name))
    return ties


def _check_servers(listed: Sequence[Stage], ties: Sequence[Tie], options: PipelineOptions) -> None:
    """What does not go together with parameters on a parameter server."""
    names: dict[str, int] = {}
    for number, stage in enumerate(listed):
        if not stage.parameter_server:
            continue
        first = names.setdefault(stage.parameter_server, number)
        if first != number:
            raise ArgumentError(
                f"stages {first} and {number} both have their parameters on a parameter server as "
                f"{stage.parameter_server!r}, where they would be one: give each stage its own name"
            )
        tied = any(number == index for tie in ties for index, _ in tie)
        if options.optimizer is None or options.commit_every != 1:
            raise ArgumentError(
                f"stage {number} has its parameters on a parameter server: it needs optimizer=, and "
                "commit_every=1"
            )
        if stage.replicas > 1 or tied or options.precision is not None:
            raise ArgumentError(
                f"stage {number} has its parameters on a parameter server: it can have neither replicas nor "
                "tied parameters, nor another precision"
            )


def _plans(listed: Sequence[Stage], options: PipelineOptions) -> list[StagePlan]:
    rule = None if options.optimizer is None else options.optimizer.rule.spec()
    last = len(listed) - 1
    skips = routes([_shell(stage) for stage in listed])
    return [
        StagePlan(
            number,
            stage.module,
            tuple(stage.args),
            dict(stage.kwargs),
            rule,
            options.loss if number == last else None,
            stage.recompute or options.recompute,
            {name: to for name, (source, to) in skips.items() if source == number != to},
            {name: source for name, (source, to) in skips.items() if to == number != source},
            options.precision or "",
            stage.parameter_server,
        )
        for number, stage in enumerate(listed)
    ]


def _shell(stage: Stage) -> Module:
    """The stage's module; of a class, whose module is made on its service, one that holds nothing yet."""
    return stage.module if isinstance(stage.module, Module) else stage.module.__new__(stage.module)
