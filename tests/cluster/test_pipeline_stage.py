"""Stage services in a cluster: they are workers by another role, with a worker's flags."""

import os
from collections.abc import AsyncIterator

import pytest
import remote_functions as functions
from service_checks import member

from psframework.cluster.connect import connect
from psframework.cluster.local import LocalCluster, local_cluster
from psframework.cluster.settings import PipelineStageSettings
from psframework.errors import PeerLost, PermissionDenied, ResourceExhausted
from psframework.rpc.deadline import Deadline

MODULE = "services.pipeline_stage"


@pytest.fixture(scope="module")
async def local() -> AsyncIterator[LocalCluster]:
    async with local_cluster(stages=2, imports=["remote_functions"]) as cluster:
        yield cluster


def test_flags_are_those_of_a_worker() -> None:
    flags = ["--import", "a,b", "--allow", "trainer:*", "--max-running", "2", "--queue", "3"]
    settings = PipelineStageSettings.from_command_line(flags, "stage")
    assert settings.import_modules == ("a", "b")
    assert (settings.allow, settings.max_running, settings.queue) == (("trainer:*",), 2, 3)


async def test_stages_have_names_of_their_own_and_call_each_other(local: LocalCluster) -> None:
    assert list(local.processes) == ["coordinator", "stage-0", "stage-1"]
    async with connect(local.address) as cluster:
        stages = cluster.members(role="pipeline-stage")
        assert sorted(stage.name for stage in stages) == ["stage-0", "stage-1"]
        assert (
            await cluster.rpc_async("stage-0", functions.ask, ("stage-1", "remote_functions.add", 1, 2)) == 3
        )


async def test_a_killed_stage_is_lost_and_restarts_on_its_port(local: LocalCluster) -> None:
    stage = local.processes["stage-1"]
    async with connect(local.address) as cluster:
        before = cluster.membership.find("stage-1")
        assert before is not None
        pid = await cluster.rpc_async("stage-1", functions.pid)
        assert pid == stage.pid != os.getpid()
        waiting = cluster.rpc_async("stage-1", functions.sleep, (60,))
        await cluster.rpc_async("stage-1", functions.add, (1, 1))
        stage.kill()
        with pytest.raises(PeerLost, match="stage-1"):
            await waiting
        await local.restart("stage-1")
        await cluster.membership.wait_for(
            lambda view: view.find("stage-1") not in (None, before), Deadline.after(8)
        )
        after = cluster.membership.find("stage-1")
        assert after is not None
        assert after.addresses == before.addresses
        assert await cluster.rpc_async("stage-1", functions.pid) == stage.pid != pid


async def test_a_further_one_takes_the_lowest_free_name(local: LocalCluster) -> None:
    async with member(local, MODULE) as spare, connect(local.address) as cluster:
        assert "joined as stage-2" in spare.output
        assert await cluster.rpc_async("stage-2", functions.pid) == spare.pid


async def test_who_may_call_what_and_how_much(local: LocalCluster) -> None:
    rules = ["--allow", "trainer:remote_functions.sleep", "--max-running", "1", "--queue", "0"]
    async with member(local, MODULE, "--name", "strict", *rules), connect(local.address) as cluster:
        with pytest.raises(PermissionDenied, match="no rule allows it"):
            await cluster.rpc_async("strict", functions.add, (1, 2))
        running = cluster.rpc_async("strict", functions.sleep, (60,))
        with pytest.raises(ResourceExhausted):
            await cluster.rpc_async("strict", functions.sleep, (0,))
        running.cancel()
