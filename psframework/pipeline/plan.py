"""What the driver and the ranks of a pipe tell each other. Travels as values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

from psframework.pipeline.trees import Tree
from psframework.rpc.values.types import register_type

Tie: TypeAlias = tuple[tuple[int, str], ...]
"""A parameter that several stages use: (stage, name there) of each, in the order of the stages."""


@register_type(name="psframework.pipeline.Key")
class Key(NamedTuple):
    """What something that is delivered is for.

    Attributes:
        run: counts the runs of a pipe, whatever became of them.
        kind: "F" for inputs of a stage, "B" for gradients of its outputs, "T" for targets, "S:NAME" for what
            was stashed, "G:NAME" for its gradient, "W:NUMBER" for a gradient of a tied parameter.
        stage: that takes it; for "W:NUMBER" its place in the tie that it comes from.
        microbatch: its number.
    """

    run: int
    kind: str
    stage: int
    microbatch: int


@register_type(name="psframework.pipeline.StagePlan")
@dataclass(frozen=True)
class StagePlan:
    """One stage, as its rank makes it.

    Args:
        index: of the stage.
        module: a Module, or a registered class of Modules.
        args, kwargs: of the class.
        rule: spec of the update rule; None: it is not updated.
        loss: a registered function, for the last stage.
        recompute: whether its forward runs again in backward.
        stashes: name -> stage that pops it.
        pops: name -> stage that stashed it.
        precision: dtype that it computes in; empty: that of its parameters.
        parameter_server: name under which its parameters are on a parameter server; empty: they are not.
    """

    index: int
    module: Any
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    rule: dict[str, Any] | None = None
    loss: Any = None
    recompute: bool = False
    stashes: dict[str, int] = field(default_factory=dict)
    pops: dict[str, int] = field(default_factory=dict)
    precision: str = ""
    parameter_server: str = ""


@register_type(name="psframework.pipeline.PipePlan")
@dataclass(frozen=True)
class PipePlan:
    """What each rank must know of the whole pipe.

    Args:
        pipe: its id; who knows it may deliver.
        generation: counts its lives.
        services: names of the services of each rank; several for a rank that is replicated.
        stages: how many; rank r holds r, r + ranks, ...
        schedule: name of the schedule.
        seed: decides initial values and what dropout drops.
        ties: parameters that are one.
        job: whose names of models on parameter servers count.
    """

    pipe: str
    generation: int
    services: tuple[tuple[str, ...], ...]
    stages: int
    schedule: str
    seed: int
    ties: tuple[Tie, ...] = ()
    job: str = ""

    @property
    def ranks(self) -> int:
        """How many."""
        return len(self.services)

    @property
    def virtual_stages(self) -> int:
        """Stages of each rank."""
        return self.stages // self.ranks

    def buddy_of(self, rank: int) -> str | None:
        """Who keeps the state of a rank; None where its replicas do, or nobody can."""
        if len(self.services[rank]) > 1 or self.ranks == 1:
            return None
        return self.services[(rank + 1) % self.ranks][0]

    def stages_of(self, rank: int) -> range:
        """Stages that a rank holds."""
        return range(rank, self.stages, self.ranks)

    def service_of(self, stage: int, microbatch: int) -> str:
        """Who runs a micro-batch of a stage: replicas take turns."""
        replicas = self.services[stage % self.ranks]
        return replicas[microbatch % len(replicas)]


@register_type(name="psframework.pipeline.Order")
@dataclass(frozen=True)
class Order:
    """One run through the pipe.

    Args:
        run: its number.
        step: counts the steps that were completed before it.
        microbatches: how many.
        weights: of each in the loss, times the scale of the loss; none for inference.
        fresh: whether gradients of the run before are forgotten first, rather than added to.
        update: "now": the run ends with an update of the parameters; "held": with gradients that are summed
            over all that share a parameter, for an update that the driver asks for; "": with gradients.
        commit: whether the update ends with a commit.
        complete: the newest commit that all ranks have: older ones are not needed any more.
        over: this run and all before it have ended.
        train: whether there is a backward.
        targets: whether a loss is wanted.
        earlier: runs before it whose gradients it adds to; decides what dropout drops, as `step` does.
    """

    run: int
    step: int
    microbatches: int
    weights: tuple[float, ...] = ()
    fresh: bool = True
    update: str = "now"
    commit: bool = True
    complete: int = 0
    over: int = 0
    train: bool = True
    targets: bool = True
    earlier: int = 0


@register_type(name="psframework.pipeline.Report")
@dataclass(frozen=True)
class Report:
    """What a rank tells when its part of a run is done.

    Args:
        losses: of each micro-batch, where the loss is.
        outputs: of each micro-batch of an inference, where the last stage is.
        spans: (kind, stage, micro-batch, began, ended) of each action, in seconds of the rank's clock.
        peak: stage -> most micro-batches that kept something at once.
        power: sum of squares of all gradients, where an update is held; not finite if one is not.
        clock: the rank's, when it answered.
        kernel: under which it runs: two under one have one clock.
    """

    losses: dict[int, float] = field(default_factory=dict)
    outputs: dict[int, Tree] = field(default_factory=dict)
    spans: Sequence[tuple[str, int, int, float, float]] = ()
    peak: Mapping[int, int] = field(default_factory=dict)
    power: float = 0.0
    clock: float = 0.0
    kernel: str = ""


@register_type(name="psframework.pipeline.Standing")
@dataclass(frozen=True)
class Standing:
    """Where a rank is.

    Args:
        commits: that it could go back to.
        doing: what it does, in words; empty: nothing.
        seconds: since when.
    """

    commits: tuple[int, ...] = ()
    doing: str = ""
    seconds: float = 0.0
