"""The command line as users meet it: every command has an example, every error is one line."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from psframework.cli.app import COMMANDS as KNOWN
from psframework.cli.app import app, main

COMMANDS = [
    "bench",
    "call",
    "certs",
    "certs init",
    "certs issue",
    "certs show",
    "demo",
    "health",
    "rref",
    "rref list",
    "run",
    "serve",
    "status",
    "up",
]


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_an_example(command: str) -> None:
    result = CliRunner().invoke(app, [*command.split(), "--help"])
    assert result.exit_code == 0
    assert f"Example: psf {command}" in " ".join(result.output.split())


def test_the_commands_are_these() -> None:
    listed = CliRunner().invoke(app, ["--help"]).output
    assert all(f"│ {name} " in listed for name in KNOWN)
    assert sorted(KNOWN) == sorted({command.split()[0] for command in COMMANDS})


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["serve", "worker-bee"], "no service 'worker-bee'; there are allreduce, coordinator"),
        (["certs", "issue", "trainer", "--dir", "nowhere"], "psf certs init"),
        (["status"], "PSF_COORDINATOR"),
        (["rref", "list"], "PSF_COORDINATOR"),
        (["call", "worker-0", "f"], "PSF_COORDINATOR"),
        (["demo", "--resume", "nothing.safetensors"], "nothing.safetensors is no model file"),
        (["demo", "--kill", "--trainers", "1"], "--trainers 2"),
        (["up", "--lanes", "pigeon"], "pigeon"),
        (["bench", "nonsense"], "no benchmark"),
        (["run", "nowhere.py"], "no script nowhere.py"),
    ],
)
def test_an_error_is_one_line_and_status_2(
    arguments: list[str],
    words: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PSF_COORDINATOR", raising=False)
    assert main(arguments) == 2
    said = capsys.readouterr().err.strip()
    assert said.startswith("error: ")
    assert words in said
    assert "\n" not in said


def test_unknown_flags_are_refused_as_usual() -> None:
    assert main(["status", "--nonsense"]) == 2


def test_it_is_installed_as_psf() -> None:
    psf = Path(sys.executable).with_name("psf")
    result = subprocess.run(
        [psf, "--help"],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "COLUMNS": "120"},
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert "certs" in result.stdout
