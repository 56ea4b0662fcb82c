"""Flags > environment > psf.toml > defaults, and clear errors for what doesn't fit."""

from pathlib import Path

import pytest

from psframework.cluster.settings import (
    CoordinatorSettings,
    ParameterServerSettings,
    ServiceSettings,
    Settings,
)
from psframework.errors import ConfigurationError


@pytest.fixture(autouse=True)
def _empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PSF_CONFIG", raising=False)


@pytest.mark.parametrize(
    "address", ["localhost", "localhost:", "localhost:0", ":7070", "host:70000", "http://host:70"]
)
def test_a_coordinator_without_a_port_is_told_at_once(address: str) -> None:
    with pytest.raises(ConfigurationError, match=r"PSF_COORDINATOR.*HOST:PORT"):
        Settings.load(coordinator=("127.0.0.1:7070", address))


def test_flags_win_over_environment_over_file_over_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ServiceSettings.load().bind == "127.0.0.1:0"
    Path("psf.toml").write_text('bind = "127.0.0.1:1"\nname = "from-file"\n')
    assert ServiceSettings.load().bind == "127.0.0.1:1"
    monkeypatch.setenv("PSF_BIND", "127.0.0.1:2")
    assert ServiceSettings.load().bind == "127.0.0.1:2"
    settings = ServiceSettings.from_command_line(["--bind", "127.0.0.1:3"], "x")
    assert (settings.bind, settings.name) == ("127.0.0.1:3", "from-file")


def test_another_file_is_named_by_psf_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "other.toml").write_text('coordinator = ["a:1", "b:2"]\n')
    monkeypatch.setenv("PSF_CONFIG", str(tmp_path / "other.toml"))
    assert Settings.load().coordinator == ("a:1", "b:2")


def test_none_does_not_hide_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PSF_NAME", "me")
    assert Settings.load(name=None).name == "me"
    assert Settings.load(name="you").name == "you"


def test_lists_by_commas_and_by_repetition(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PSF_COORDINATOR", "a:1, b:2")
    settings = ServiceSettings.from_command_line(["--advertise", "c:3", "--advertise=d:4,e:5"], "x")
    assert settings.coordinator == ("a:1", "b:2")
    assert settings.advertise == ("c:3", "d:4", "e:5")


def test_modules_to_import_come_from_the_prefixed_variable_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IMPORT", "stray")
    assert ServiceSettings.load().import_modules == ()
    monkeypatch.setenv("PSF_IMPORT", "mine")
    assert ServiceSettings.load().import_modules == ("mine",)
    assert ServiceSettings.from_command_line(["--import", "other"], "x").import_modules == ("other",)


def test_empty_variables_mean_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PSF_TLS_DIR", "")
    assert Settings.load().tls_dir is None


def test_a_port_range(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ServiceSettings.from_command_line(["--port-range", "7000-7100"], "x").port_range == (7000, 7100)
    monkeypatch.setenv("PSF_PORT_RANGE", "1-2")
    assert ServiceSettings.load().port_range == (1, 2)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--port-range", "7000"], r"--port-range \(PSF_PORT_RANGE\).*7000 is not LOW-HIGH"),
        (["--lease", "abc"], r"--lease \(PSF_LEASE\).*number"),
        (["--lease", "-1"], r"--lease \(PSF_LEASE\).*greater than 0"),
        (["--memory-limit", "3"], r"--memory-limit \(PSF_MEMORY_LIMIT\)"),
    ],
)
def test_values_that_do_not_fit_are_named(arguments: list[str], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        ParameterServerSettings.from_command_line(arguments, "x")


def test_a_file_that_is_not_toml() -> None:
    Path("psf.toml").write_text("bind = [")
    with pytest.raises(ConfigurationError, match="bad settings"):
        Settings.load()


def test_help_and_unknown_flags_end_the_process(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        CoordinatorSettings.from_command_line(["--help"], "services.coordinator")
    printed = capsys.readouterr().out
    for flag in ("--bind", "--advertise", "--port-range", "--coordinator", "--name", "--tls-dir", "--state"):
        assert flag in printed
    words = " ".join(printed.split())
    assert "(default: 5.0)" in words
    assert "default: None" not in words and "default: ()" not in words, "none is no default"
    with pytest.raises(SystemExit, match="2"):
        CoordinatorSettings.from_command_line(["--nonsense"], "services.coordinator")
