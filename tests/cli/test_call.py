"""`psf call` calls what a script would, and prints what comes back."""

import json
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest

import psframework as psf
from psframework.cli.app import main
from psframework.cli.call import parsed, plain
from psframework.cluster.local import LocalCluster, local_cluster
from psframework.rpc.compute import compute


@pytest.fixture(scope="module")
async def local() -> AsyncIterator[LocalCluster]:
    async with local_cluster(workers=1, imports=["remote_functions"]) as cluster:
        yield cluster


@pytest.fixture
def psf_call(local: LocalCluster, capsys: pytest.CaptureFixture[str]) -> Any:
    async def run(*line: str, status: int = 0) -> str:
        arguments = ["call", *line, "--coordinator", local.address, "--timeout", "20"]
        assert await compute(main, arguments) == status
        captured = capsys.readouterr()
        return captured.err if status else captured.out

    return run


async def test_values(psf_call: Any) -> None:
    assert await psf_call("worker-0", "remote_functions.add", "1", "-2") == "-1\n"
    assert await psf_call("worker-0", "remote_functions.add", "spam ", "eggs") == "'spam eggs'\n"
    assert (
        await psf_call("worker-0", "remote_functions.add", "[1]", "--kwargs", '{"y": [null]}')
        == "[1, None]\n"
    )
    answer = await psf_call("worker-0", "remote_functions.add", "spam ", "eggs", "--json")
    assert json.loads(answer) == "spam eggs"


async def test_a_generator_is_a_line_for_each_item(psf_call: Any) -> None:
    assert await psf_call("worker-0", "remote_functions.numbers", "3") == "0\n1\n2\n"


async def test_the_list(psf_call: Any) -> None:
    await psf_call("worker-0", "remote_functions.add", "1", "2")
    table = await psf_call("worker-0", "--list")
    assert "remote_functions.add" in table
    assert "worker-0: 0 running" in table
    functions = {
        each["name"]: each for each in json.loads(await psf_call("worker-0", "--list", "--json"))["functions"]
    }
    assert functions["remote_functions.add"]["calls"] >= 1
    assert functions["remote_functions.add"]["seconds_p99"] > 0
    assert functions["remote_functions.for_admins"]["roles"] == ["admin"]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (["worker-9", "remote_functions.add"], "no member 'worker-9'"),
        (["worker-0", "remote_functions.ad"], "near it: remote_functions.add"),
        (["worker-0", "remote_functions.fail", "because"], "ValueError: because"),
        (["worker-0", "remote_functions.for_admins"], "needs 'admin'"),
        (["worker-0", "remote_functions.add", "--kwargs", "[]"], "a JSON object"),
        (["worker-0"], "psf call worker-0 --list"),
    ],
)
async def test_what_goes_wrong_is_one_line(psf_call: Any, line: list[str], words: str) -> None:
    last = (await psf_call(*line, status=2)).splitlines()[-1]
    assert last.startswith("error: ")
    assert words in last


async def test_the_traceback_of_the_other_side_is_shown(psf_call: Any) -> None:
    assert "raise ValueError(text)" in await psf_call("worker-0", "remote_functions.fail", "x", status=2)


def test_no_cluster(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PSF_COORDINATOR", raising=False)
    assert main(["call", "worker-0", "f"]) == 2
    assert "PSF_COORDINATOR" in capsys.readouterr().err


def test_arguments_and_results_as_json() -> None:
    assert [parsed(text) for text in ("1", "[1, 2]", "true", "Bob", "{", '"1"')] == [
        1,
        [1, 2],
        True,
        "Bob",
        "{",
        "1",
    ]
    value = {"a": np.eye(2), 1: (psf.tensor([1.5]), b"\x00"), "c": np.float32(2), "d": 1j, "e": {3}}
    assert plain(value) == {
        "a": [[1.0, 0.0], [0.0, 1.0]],
        "1": [[1.5], "AA=="],
        "c": 2.0,
        "d": "1j",
        "e": [3],
    }
