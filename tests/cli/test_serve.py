"""`psf serve` runs the services that are installed, and names them when asked for another."""

import subprocess
import sys

import pytest

from psframework.cli.serve import find_service, services
from psframework.errors import NotRegistered


def test_the_services_of_this_version() -> None:
    assert services()["coordinator"] == "services.coordinator"
    assert services()["parameter-server"] == "services.parameter_server"


def test_an_unknown_service_is_answered_with_those_there_are() -> None:
    with pytest.raises(NotRegistered, match=r"no service 'parameter-sever'.*did you mean parameter-server\?"):
        find_service("parameter-sever")
    with pytest.raises(NotRegistered, match="there are coordinator, parameter-server"):
        find_service("xyz")


def test_flags_after_the_name_are_for_the_service() -> None:
    command = [sys.executable, "-P", "-m", "psframework.cli.app", "serve", "parameter-server", "--help"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 0, result.stderr
    assert "--memory-limit" in result.stdout
