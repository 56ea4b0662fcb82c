"""What members ask of a member that holds stages: functions that are called by name."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from psframework.nn.module import Module
from psframework.pipeline.commits import State
from psframework.pipeline.host import Host, build, host_of
from psframework.pipeline.plan import PipePlan, StagePlan
from psframework.pipeline.post import DELIVER, KEEP, Letter
from psframework.rpc.compute import compute
from psframework.rpc.current import current
from psframework.rpc.registry import remote
from psframework.rpc.values.types import register_type

PLACE: Final = "psframework.pipeline.place"
GIVE: Final = "psframework.pipeline.give"


@register_type(name="psframework.pipeline.Source")
@dataclass(frozen=True)
class Source:
    """Where the state of a rank that is gone is.

    Args:
        service: that keeps it.
        commit: its number.
        run: the last one of the life before.
    """

    service: str
    commit: int
    run: int


@remote(name=PLACE)
async def place(
    plan: PipePlan, seat: tuple[int, int], stages: list[StagePlan], source: Source | None = None
) -> Host:
    """Makes the stages of a rank here. What it answers lives as long as somebody refers to it.

    Args:
        plan: of the pipe.
        seat: the rank, and the number among its replicas.
        stages: of the rank.
        source: of its state; None: initial values.

    Raises:
        PermissionDenied: a class of a stage, or the loss, is not for whoever places it.
        NameTaken: somebody else trains what a stage has on a parameter server.
    """
    cluster = current.get()
    check_allowed(cluster, stages)
    made = {stage.index: await compute(build, plan, stage) for stage in stages}
    host = Host(plan, seat, made, {stage.index: stage for stage in stages}, cluster)
    await host.open(first=source is None)
    if source is not None:
        state = await cluster.rpc_async(source.service, GIVE, (plan.pipe, seat[0], source.commit), timeout=0)
        await host.resume(source.commit, state, source.run)
    return host


def check_allowed(cluster: Any, stages: Iterable[StagePlan]) -> None:
    """What stages are made of runs here as if it were called: with the same roles and rules.

    Raises:
        PermissionDenied: whoever the running code works for may not call it.
    """
    for stage in stages:
        for each in (stage.module, stage.loss):
            if each is not None and not isinstance(each, Module):  # a Module was checked as it arrived
                cluster.check_caller(each)


@remote(name=DELIVER)
async def deliver(pipe: str, letters: list[Letter]) -> None:
    """Something for actions of a rank that is here."""
    host = host_of(pipe, current.get().name)
    for key, tree in letters:
        host.deliver(key, tree)


@remote(name=KEEP)
async def keep(pipe: str, rank: int, number: int, complete: int, state: State) -> None:
    """Keeps a commit of a rank that is elsewhere."""
    host_of(pipe, current.get().name).keep(rank, number, complete, state)


@remote(name=GIVE)
async def give(pipe: str, rank: int, commit: int) -> State:
    """The state of a rank that is gone."""
    return host_of(pipe, current.get().name).kept(rank, commit)
