"""Drivers of pipelines in a cluster: workers by another role, with a worker's flags."""

import remote_functions as functions

from psframework.cluster.connect import connect
from psframework.cluster.local import local_cluster
from psframework.cluster.settings import PipelineSettings


def test_flags_are_those_of_a_worker() -> None:
    settings = PipelineSettings.from_command_line(["--import", "a", "--allow", "trainer:*"], "pipeline")
    assert (settings.import_modules, settings.allow) == (("a",), ("trainer:*",))


async def test_a_driver_calls_the_stages_of_its_cluster_and_restarts() -> None:
    imports = ["remote_functions"]
    async with local_cluster(stages=1, pipelines=1, imports=imports) as local:
        assert list(local.processes) == ["coordinator", "stage-0", "pipeline-0"]
        async with connect(local.address) as cluster:
            (driver,) = cluster.members(role="pipeline")
            assert driver.name == "pipeline-0"
            ask = ("stage-0", "remote_functions.add", 1, 2)
            assert await cluster.rpc_async("pipeline-0", functions.ask, ask) == 3
        await local.restart("pipeline-0")
        async with connect(local.address) as cluster:
            pid = await cluster.rpc_async("pipeline-0", functions.pid)
            assert pid == local.processes["pipeline-0"].pid
