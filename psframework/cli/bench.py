"""`psf bench`: measures the performance budget against the peers, in a checkout; or tunes this machine."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import Annotated

import typer

from psframework.errors import ArgumentError, NotRegistered

CONTEXT = {"allow_extra_args": True, "allow_interspersed_args": False, "ignore_unknown_options": True}
app = typer.Typer(add_completion=False, rich_markup_mode="rich", pretty_exceptions_enable=False)


@app.command(context_settings=CONTEXT)
def bench(
    context: typer.Context,
    names: Annotated[list[str] | None, typer.Argument(help="benchmarks to run; none: all of them")] = None,
    listing: Annotated[bool, typer.Option("--list", help="only say which there are")] = False,
    tune: Annotated[
        bool, typer.Option("--tune", help="measure how collectives are fastest here, and write the table")
    ] = False,
    ranks: Annotated[str, typer.Option(help="with --tune: sizes of groups, 2 to 16; default: 2,4")] = "",
    sizes: Annotated[
        str, typer.Option(help="with --tune: bytes of the arrays; default: 4 KiB to 16 MiB")
    ] = "",
    out: Annotated[
        Path | None, typer.Option(help="with --tune: the file; default: PSF_TUNING, else the user's own")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="with --tune: print JSON")] = False,
) -> None:
    """Run benchmarks of a checkout; each prints its figures and ratios.

    With --tune, measure instead how ranks that share a network, but no memory,
    all-reduce arrays of each size best: in about a minute, with real processes
    on this machine. Groups choose by the table that it writes.

    Example: [bold]psf bench rpc mlp[/bold] ([bold]psf bench --tune --ranks 2,4[/bold])
    """
    if tune:
        if names or listing:
            raise ArgumentError("--tune measures collectives only: name no benchmarks with it")
        _tune(ranks, sizes, out, as_json)
        return
    if ranks or sizes or out or as_json:
        raise ArgumentError("--ranks, --sizes, --out and --json go with --tune")
    known = benchmarks()
    if not known:
        raise NotRegistered("no benchmarks here: they are in the repository, not in the installed package")
    chosen = names or list(known)
    for name in chosen:
        if name not in known:
            raise NotRegistered(f"no benchmark {name!r}; there are {', '.join(known)}")
    if listing:
        print("\n".join(chosen))
        return
    missed = [name for name in chosen if not _run(name, known[name])]
    if missed:
        print(f"a target was missed in: {', '.join(missed)}")
        raise typer.Exit(1)


def _tune(ranks: str, sizes: str, out: Path | None, as_json: bool) -> None:
    from psframework.cli import tune
    from psframework.cluster.tune import RANKS, SIZES, Plan

    plan = Plan(
        tune.numbers(ranks, "--ranks") if ranks else RANKS, tune.numbers(sizes, "--sizes") if sizes else SIZES
    )
    tune.run(plan, out, as_json=as_json)


def _run(name: str, script: Path) -> bool:
    """Whether the benchmark met its targets; one that did not ends with status 1, and the next one runs."""
    print(f"== {name}", flush=True)
    sys.argv = [str(script)]
    try:
        runpy.run_path(str(script), run_name="__main__")
    except SystemExit as end:
        if end.code not in (None, 0, 1):
            raise
        return end.code != 1
    return True


def benchmarks() -> dict[str, Path]:
    """Benchmark name -> script, of the checkout that this package or the current folder belongs to."""
    for root in (Path(__file__).parents[2], Path.cwd()):
        scripts = sorted(path for path in (root / "benchmarks").glob("*.py") if not path.name.startswith("_"))
        if scripts and (root / "pyproject.toml").exists():
            return {path.stem: path for path in scripts}
    return {}
