"""What members ask of a member that holds stages: functions that are called by name."""

from __future__ import annotations

from psframework.pipeline.host import Host, build, host_of
from psframework.pipeline.plan import Key, PipePlan, StagePlan
from psframework.pipeline.post import DELIVER
from psframework.pipeline.trees import Tree
from psframework.rpc.compute import compute
from psframework.rpc.current import current
from psframework.rpc.registry import remote

PLACE = "psframework.pipeline.place"


@remote(name=PLACE)
async def place(plan: PipePlan, rank: int, stages: list[StagePlan]) -> Host:
    """Makes the stages of a rank here. What answers lives as long as somebody refers to it."""
    made = {stage.index: await compute(build, plan, stage) for stage in stages}
    host = Host(plan, rank, made, {stage.index: stage for stage in stages}, current.get())
    await host.commit(0)
    return host


@remote(name=DELIVER)
async def deliver(pipe: str, key: Key, tree: Tree) -> None:
    """Something for an action of a rank that is here."""
    host_of(pipe, current.get().name).deliver(key, tree)
