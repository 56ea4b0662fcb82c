"""`psf serve` runs the services that are installed, and names them when asked for another."""

import subprocess
import sys
from pathlib import Path

import pytest

from psframework.cli.serve import find_service, services
from psframework.cluster.connect import connect
from psframework.cluster.local import local_cluster
from psframework.cluster.process import ServiceProcess
from psframework.errors import NotRegistered


def test_the_services_of_this_version() -> None:
    assert services()["coordinator"] == "services.coordinator"
    assert services()["parameter-server"] == "services.parameter_server"
    assert services()["pipeline-stage"] == "services.pipeline_stage"
    assert services()["pipeline"] == "services.pipeline"


def test_an_unknown_service_is_answered_with_those_there_are() -> None:
    with pytest.raises(NotRegistered, match=r"no service 'parameter-sever'.*did you mean parameter-server\?"):
        find_service("parameter-sever")
    with pytest.raises(NotRegistered, match="there are allreduce, coordinator, parameter-server"):
        find_service("xyz")


def test_flags_after_the_name_are_for_the_service() -> None:
    command = [sys.executable, "-P", "-m", "psframework.cli.app", "serve", "parameter-server", "--help"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 0, result.stderr
    assert "--memory-limit" in result.stdout


@pytest.mark.parametrize("service", ["pipeline-stage", "pipeline"])
def test_the_help_of_a_service_shows_an_example(service: str) -> None:
    command = [sys.executable, "-P", "-m", "psframework.cli.app", "serve", service, "--help"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 0, result.stderr
    example = f"example: psf serve {service} --coordinator 127.0.0.1:7070 --import my_module"
    assert example in " ".join(result.stdout.split())


async def test_a_worker_beside_its_module_joins_a_local_cluster_without_more_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "beside.py").write_text(
        "import psframework as psf\n\n@psf.remote\ndef double(x):\n    return 2 * x\n"
    )
    monkeypatch.chdir(tmp_path)
    async with local_cluster() as local:
        flags = ["--coordinator", local.address, "--import", "beside", "--name", "own"]
        own = ServiceProcess("own", "psframework.cli.app", ["serve", "worker", *flags])
        own.start()
        try:
            await own.wait_serving(60, joined=True)
            async with connect(local.address) as cluster:
                assert await cluster.rpc_async("own", "beside.double", args=(21,)) == 42
        finally:
            await own.stop(5)
