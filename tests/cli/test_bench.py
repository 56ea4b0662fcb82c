"""`psf bench` finds the scripts of a checkout and runs each as a main program."""

from pathlib import Path

import pytest
import typer

from psframework.cli import bench
from psframework.errors import NotRegistered


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "benchmarks").mkdir()
    for name in ("b", "a", "_helper"):
        text = "if __name__ == '__main__': import sys; print('ran', sys.argv)"
        (tmp_path / "benchmarks" / f"{name}.py").write_text(text)
    (tmp_path / "pyproject.toml").touch()
    monkeypatch.setattr(bench, "__file__", str(tmp_path / "psframework" / "cli" / "bench.py"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*names: str, listing: bool = False) -> None:
    bench.bench(
        typer.Context(typer.main.get_command(typer.Typer(callback=lambda: None))), list(names), listing
    )


def test_runs_all_or_those_named(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run()
    assert [line[:4] for line in capsys.readouterr().out.splitlines()] == ["== a", "ran ", "== b", "ran "]
    run("b")
    assert "== a" not in capsys.readouterr().out
    run(listing=True)
    assert capsys.readouterr().out == "a\nb\n"


def test_an_unknown_benchmark(checkout: Path) -> None:
    with pytest.raises(NotRegistered, match="no benchmark 'c'; there are a, b"):
        run("c")


def test_without_a_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "__file__", str(tmp_path / "x" / "y" / "bench.py"))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(NotRegistered, match="in the repository"):
        run()


def test_a_missed_target_does_not_keep_the_others_from_running(
    checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (checkout / "benchmarks" / "a.py").write_text("import sys; sys.exit(1)")
    with pytest.raises(typer.Exit) as ended:
        run()
    assert ended.value.exit_code == 1
    printed = capsys.readouterr().out
    assert "== b\nran" in printed and "missed in: a" in printed
