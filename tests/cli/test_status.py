"""`psf status` against a real cluster."""

import json
from collections.abc import AsyncIterator

import pytest
from rich.console import Console

from psframework.cli.app import main
from psframework.cli.status import _member_table, as_plain
from psframework.cluster.connect import connect
from psframework.cluster.local import LocalCluster, local_cluster
from psframework.proto.v1 import coordinator_pb2, parameter_server_pb2
from psframework.rpc.compute import compute


@pytest.fixture(scope="module")
async def local() -> AsyncIterator[LocalCluster]:
    async with local_cluster(parameter_servers=1, workers=1, stages=1) as cluster:
        yield cluster


async def test_members_as_table_and_as_json(local: LocalCluster, capsys: pytest.CaptureFixture[str]) -> None:
    async with connect(local.address, name="somebody"):
        assert await compute(main, ["status", "--coordinator", local.address, "--json"]) == 0
        status = json.loads(capsys.readouterr().out)
        members = {member["name"]: member for member in status["members"]}
        assert members["somebody"]["role"] == "trainer"
        assert members["parameter-server-0"]["addresses"] == [local.processes["parameter-server-0"].address]
        assert members["parameter-server-0"]["state"] == "live"
        assert members["worker-0"]["role"] == "worker"
        assert members["stage-0"]["role"] == "pipeline-stage"
        assert await compute(main, ["status", "--coordinator", local.address]) == 0
        shown = capsys.readouterr().out
        assert "somebody" in shown
        assert "no models yet" in shown


async def test_a_coordinator_alone(capsys: pytest.CaptureFixture[str]) -> None:
    async with local_cluster() as alone:
        assert await compute(main, ["status", "--coordinator", alone.address]) == 0
    assert capsys.readouterr().out.startswith("no members yet: `psf serve` starts services")


async def test_nobody_answers(capsys: pytest.CaptureFixture[str]) -> None:
    assert await compute(main, ["status", "--coordinator", "127.0.0.1:1", "--timeout", "1"]) == 2
    assert capsys.readouterr().err.startswith("error: 127.0.0.1:1")


def test_models() -> None:
    roster = parameter_server_pb2.Roster(
        entries=[
            parameter_server_pb2.RosterEntry(name="t-0", writer=1),
            parameter_server_pb2.RosterEntry(name="left", writer=2, until_step_plus_one=3),
            parameter_server_pb2.RosterEntry(name="waiting", writer=0),
        ]
    )
    model = parameter_server_pb2.ModelInfo(
        job="default",
        model="m",
        policy='{"name": "bsp"}',
        shards=[parameter_server_pb2.Shard(name="parameter-server-0")],
        roster=roster,
    )
    plain = as_plain(
        coordinator_pb2.ListMembersResponse(term=3), parameter_server_pb2.ListModelsReply(models=[model])
    )
    assert plain["models"] == [
        {
            "job": "default",
            "model": "m",
            "parameters": 0,
            "partitions": 0,
            "policy": {"name": "bsp"},
            "optimizer": None,
            "shards": ["parameter-server-0"],
            "trainers": ["t-0"],
        }
    ]


def test_long_names_are_not_cut_short(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    name = "a-trainer-with-a-long-name-" + "x" * 40
    member = coordinator_pb2.Member(name=name, role="trainer", addresses=["host-of-it.example:12345"])
    monkeypatch.setenv("COLUMNS", "60")
    Console().print(_member_table(coordinator_pb2.ListMembersResponse(members=[member])))
    shown = capsys.readouterr().out
    cells = [[cell.strip() for cell in line.split("│")[1:-1]] for line in shown.splitlines() if "│" in line]
    assert "".join(row[0] for row in cells) == name
