"""`psf health` tells by its exit status whether a service serves."""

import subprocess
import sys
from pathlib import Path

import pytest

from psframework.cli.app import main
from psframework.cluster.process import ServiceProcess
from psframework.rpc.compute import compute
from psframework.rpc.security import certificates


@pytest.mark.parametrize(
    ("role", "gives"),
    [
        ("coordinator", "CoordinatorService"),
        ("pipeline-stage", "RemoteService"),
        ("pipeline", "RemoteService"),
    ],
)
async def test_a_service_with_tls(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], role: str, gives: str
) -> None:
    certificates.init(tmp_path)
    folders = {role: certificates.issue(tmp_path, role) for role in (role, "trainer")}
    state = ["--state", str(tmp_path / "state.sqlite")] if role == "coordinator" else []
    arguments = ["--tls-dir", str(folders[role]), *state]
    process = ServiceProcess(role, f"services.{role.replace('-', '_')}", arguments)
    process.start()
    try:
        address = await process.wait_serving(30)
        mine = ["--tls-dir", str(folders["trainer"]), "--timeout", "3"]
        assert await compute(main, ["health", address, "--role", role, *mine]) == 0
        assert capsys.readouterr().out == "SERVING\n"
        assert await compute(main, ["health", address, "--role", "parameter-server", *mine]) == 1
        assert "no answer" in capsys.readouterr().out
        service = ["--service", f"psframework.proto.v1.{gives}"]
        assert await compute(main, ["health", address, "--role", role, *mine, *service]) == 0
    finally:
        await process.stop(5)


def test_nobody_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["health", "127.0.0.1:1", "--timeout", "1"]) == 1
    assert "no answer" in capsys.readouterr().out


def test_it_starts_without_what_only_logs_and_arrays_need() -> None:
    """Containers are asked every few seconds."""
    code = (
        "import sys, psframework.cli.health\n"
        "assert not {'structlog', 'rich', 'numpy', 'psframework.cluster'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
