"""A command is a member under a name of its own, or of its certificate."""

import os
from pathlib import Path

import pytest

from psframework.cli.member import Where, console
from psframework.cluster.local import local_cluster
from psframework.cluster.process import ServiceProcess
from psframework.errors import ConfigurationError
from psframework.rpc.security import certificates


async def test_a_name_that_no_trainer_gets() -> None:
    async with local_cluster() as local, Where(local.address, None, 10.0).connect() as cluster:
        assert cluster.name == f"psf-{os.getpid()}"


async def test_the_name_in_the_certificate(tmp_path: Path) -> None:
    certificates.init(tmp_path)
    mine = certificates.issue(tmp_path, "trainer", "me")
    flags = [
        "--tls-dir",
        str(certificates.issue(tmp_path, "coordinator")),
        "--state",
        str(tmp_path / "state"),
    ]
    coordinator = ServiceProcess("coordinator", "services.coordinator", flags)
    coordinator.start()
    try:
        async with Where(await coordinator.wait_serving(30), mine, 10.0).connect() as cluster:
            assert cluster.name == "me"
    finally:
        await coordinator.stop(5)


def test_no_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PSF_COORDINATOR", raising=False)
    with pytest.raises(ConfigurationError, match="--coordinator"):
        Where(None, None, 1.0).connect()


def test_tables_keep_their_columns_in_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    assert console().width == 120
    monkeypatch.setenv("COLUMNS", "70")
    assert console().width == 70
