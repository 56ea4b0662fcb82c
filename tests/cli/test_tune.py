"""`psf bench --tune`: writes the file that groups read, and shows what was measured."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from psframework.cli import tune
from psframework.cli.app import app, main
from psframework.cluster.tune import Figure, Plan
from psframework.collective import tuning_file
from psframework.collective.tuning import Algorithm, Table, fit
from psframework.errors import ArgumentError, ConfigurationError

FIGURES = [
    Figure(2, 4096, {Algorithm.WHOLE: 1e-6, Algorithm.DIRECT: 2e-6, Algorithm.RING: 3e-6}),
    Figure(4, 4096, {Algorithm.WHOLE: 4e-3, Algorithm.DIRECT: 2e-3, Algorithm.RING: 5e-3}),
]
MADE = fit({each.ranks: {each.nbytes: each.seconds} for each in FIGURES})


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Takes the measurement away; the user's folder for configuration."""

    async def measure(plan: Plan, show: Callable[[Figure], object]) -> tuple[Table, list[Figure]]:
        for each in FIGURES:
            show(each)
        return MADE, FIGURES

    monkeypatch.setattr(tune, "tune", measure)
    monkeypatch.delenv("PSF_TUNING")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    return tmp_path


PLAN = Plan((2, 4), (4096,))


def test_the_table_goes_where_groups_read_it(measured: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tune.run(PLAN, None, as_json=False)
    assert tuning_file.load() == MADE
    out, err = capsys.readouterr()
    assert "2 ranks, 4 KiB: whole 1 us, direct 2 us, ring 3 us" in err
    assert " 2/2 4 ranks" in err
    rows = [line.replace("│", "").split() for line in out.splitlines() if "KiB" in line]
    assert rows[0] == ["2", "4", "KiB", "1", "us", "2", "us", "3", "us", "4.1", "whole"]
    assert rows[1][-2:] == ["0.00205", "direct"]
    assert f"written to {measured}/psframework/tuning.json (digest {MADE.digest})" in out.replace("\n", " ")
    assert "PSF_TUNING" not in out


def test_another_file_has_to_be_named(measured: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = measured / "other.json"
    tune.run(PLAN, path, as_json=False)
    assert tuning_file.load({"PSF_TUNING": str(path)}) == MADE
    assert f"PSF_TUNING={path}" in capsys.readouterr().out
    assert tuning_file.load() == Table()


def test_what_was_measured_is_shown_even_if_it_can_not_be_written(
    measured: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ConfigurationError, match="can't be written"):
        tune.run(PLAN, measured, as_json=False)
    assert "whole" in capsys.readouterr().out


@pytest.mark.parametrize(("nbytes", "text"), [(4096, "4 KiB"), (3 << 20, "3 MiB"), (1000, "1000 B")])
def test_sizes_for_people(nbytes: int, text: str) -> None:
    assert tune.human(nbytes) == text


def test_numbers() -> None:
    assert tune.numbers("2, 4", "--ranks") == (2, 4)
    with pytest.raises(ArgumentError, match="--ranks two"):
        tune.numbers("two", "--ranks")


@pytest.mark.parametrize(
    ("arguments", "wrong"),
    [
        (["--tune", "rpc"], "name no benchmarks"),
        (["--tune", "--ranks", "1"], "1 ranks"),
        (["--tune", "--sizes", "4k"], "--sizes 4k"),
        (["--json"], "go with --tune"),
    ],
)
def test_flags_that_do_not_fit(arguments: list[str], wrong: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", *arguments]) == 2
    assert wrong in capsys.readouterr().err


def test_two_real_ranks(tmp_path: Path) -> None:
    path = tmp_path / "tuning.json"
    flags = ["--tune", "--ranks", "2", "--sizes", "4096,16384", "--out", str(path), "--json"]
    result = CliRunner().invoke(app, ["bench", *flags], catch_exceptions=False)
    assert result.exit_code == 0
    printed = json.loads(result.stdout)
    table = tuning_file.load({"PSF_TUNING": str(path)})
    assert printed["table"] == json.loads(path.read_text())
    assert (printed["file"], printed["digest"]) == (str(path), table.digest)
    for each, nbytes in zip(printed["measured"], (4096, 16384), strict=True):
        assert (each["ranks"], each["bytes"]) == (2, nbytes)
        assert each["gb_per_s"] == pytest.approx(nbytes / each["seconds"][each["chosen"]] / 1e9)
