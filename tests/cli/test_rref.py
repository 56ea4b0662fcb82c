"""`psf rref list` shows who holds what."""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import remote_functions as functions

from psframework.cli.app import main
from psframework.cli.rref import state
from psframework.cluster.connect import connect
from psframework.cluster.handle import Cluster
from psframework.cluster.local import LocalCluster, local_cluster
from psframework.rpc.compute import compute
from psframework.rref.ids import RRefId
from psframework.rref.listing import RRefInfo


@pytest.fixture(scope="module")
async def local() -> AsyncIterator[LocalCluster]:
    async with local_cluster(parameter_servers=1, workers=1, imports=["remote_functions"]) as cluster:
        yield cluster


@pytest.fixture
async def cluster(local: LocalCluster) -> AsyncIterator[Cluster]:
    async with connect(local.address, name="holder") as cluster:
        yield cluster


async def run(local: LocalCluster, capsys: pytest.CaptureFixture[str], *line: str) -> str:
    arguments = ["rref", "list", *line, "--coordinator", local.address]
    assert await compute(main, arguments) == 0
    return capsys.readouterr().out


async def test_values_and_their_holders(
    local: LocalCluster, cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    counter = cluster.remote("worker-0", functions.Counter, (5,))
    mine = cluster.rref([1, 2])
    await counter.confirmed_by_owner()
    owners: dict[str, Any] = {o["owner"]: o for o in json.loads(await run(local, capsys, "--json"))}
    assert sorted(owners) == ["holder", "worker-0"], "the parameter server keeps none"
    (kept,) = owners["worker-0"]["rrefs"]
    assert kept["type"] == "remote_functions.Counter"
    assert kept["state"] == "ready"
    assert [(holder["name"], holder["forks"]) for holder in kept["holders"]] == [("holder", 1)]
    assert [each["type"] for each in owners["holder"]["rrefs"]] == ["list"]
    table = await run(local, capsys, "worker-0")
    assert "holder" in table
    assert "worker-0" in table
    del counter, mine


async def test_an_owner_that_is_not_there(
    local: LocalCluster, cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "nobody: no member 'nobody'" in await run(local, capsys, "nobody")
    (answer,) = json.loads(await run(local, capsys, "nobody", "--json"))
    assert answer["owner"] == "nobody"
    assert "no member" in answer["error"]


async def test_members_that_keep_nothing_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    async with local_cluster(parameter_servers=1, workers=1, allreduce=1) as unused:
        assert await run(unused, capsys) == "no RRefs: no member that answered keeps a value for others\n"
        shown = await run(unused, capsys, "worker-0", "parameter-server-0", "allreduce-0")
    assert shown.splitlines() == [
        "worker-0 owns no RRefs",
        "parameter-server-0 owns no RRefs: it holds parts of models, which `psf status` shows",
        "allreduce-0 owns no RRefs: it runs no functions for others",
    ]


@pytest.mark.parametrize(
    ("ready", "failed", "words"),
    [(False, False, "being made"), (True, True, "failed"), (True, False, "ready")],
)
def test_states(ready: bool, failed: bool, words: str) -> None:
    assert state(RRefInfo(RRefId(1, 2), "", ready, failed, 0, (), 0.0)) == words
