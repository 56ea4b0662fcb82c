"""What `psf bench --tune` does: measures collectives on this machine, writes the table, and shows it."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table as Grid

from psframework.cluster.tune import Figure, Plan, tune
from psframework.collective import tuning_file
from psframework.collective.descriptor import Operation
from psframework.collective.tuning import Algorithm, Table
from psframework.errors import ArgumentError

_UNITS = ((1 << 20, "MiB"), (1 << 10, "KiB"), (1, "B"))


def run(plan: Plan, out: Path | None, *, as_json: bool) -> None:
    """Measures, and writes the file; progress goes to stderr, what it came to to stdout.

    Args:
        plan: what to measure.
        out: the file; None: the one that groups of this user read.
        as_json: prints JSON instead of a table.
    """
    path = out or tuning_file.location()
    began, count = time.monotonic(), 0

    def show(figure: Figure) -> None:
        nonlocal count
        count += 1
        turns = ", ".join(f"{each} {_time(seconds)}" for each, seconds in figure.seconds.items())
        steps = f"{count}/{len(set(plan.ranks)) * len(set(plan.sizes))}"
        place = f"{figure.ranks} ranks, {human(figure.nbytes)}"
        print(f"[{time.monotonic() - began:5.1f} s] {steps} {place}: {turns}", file=sys.stderr, flush=True)

    print("starting ranks as processes of this machine", file=sys.stderr, flush=True)
    table, figures = asyncio.run(tune(plan, show))
    if as_json:
        print(json.dumps(as_plain(path, table, figures), indent=2))
    else:
        Console().print(_grid(table, figures))
    tuning_file.save(table, path)  # not before: what was measured is shown also if this fails
    if as_json:
        return
    print(f"written to {path} (digest {table.digest}). All ranks of a group need the same.")
    if tuning_file.in_use() != path.absolute():
        print(f"Groups take it with {tuning_file.VARIABLE}={path}")


def numbers(text: str, flag: str) -> tuple[int, ...]:
    """Reads "2,4".

    Raises:
        ArgumentError: that is no list of numbers; names the flag.
    """
    try:
        return tuple(int(each) for each in text.split(","))
    except ValueError:
        raise ArgumentError(f"{flag} {text}: whole numbers with commas between them") from None


def human(nbytes: int) -> str:
    """4 KiB, 16 MiB, 1000 B."""
    size, unit = next(each for each in _UNITS if nbytes % each[0] == 0)
    return f"{nbytes // size} {unit}"


def as_plain(path: Path, table: Table, figures: Sequence[Figure]) -> dict[str, object]:
    """The same as dictionaries for JSON."""
    return {
        "file": str(path),
        "digest": table.digest,
        "table": json.loads(table.to_json()),
        "measured": [
            {
                "ranks": each.ranks,
                "bytes": each.nbytes,
                "seconds": {str(algorithm): seconds for algorithm, seconds in each.seconds.items()},
                "chosen": str(_chosen(table, each)),
                "gb_per_s": _speed(table, each),
            }
            for each in figures
        ],
    }


def _grid(table: Table, figures: Sequence[Figure]) -> Grid:
    grid = Grid(title="all-reduce over a network")
    for column in ("ranks", "size", *map(str, Algorithm), "GB/s"):
        grid.add_column(column, justify="right")
    grid.add_column("chosen")
    for figure in figures:
        times = [_time(figure.seconds[algorithm]) for algorithm in Algorithm]
        speed, chosen = f"{_speed(table, figure):.3g}", str(_chosen(table, figure))
        grid.add_row(str(figure.ranks), human(figure.nbytes), *times, speed, chosen)
    return grid


def _chosen(table: Table, figure: Figure) -> Algorithm:
    return table.choose(Operation.ALL_REDUCE, figure.nbytes, figure.ranks)


def _speed(table: Table, figure: Figure) -> float:
    return figure.nbytes / figure.seconds[_chosen(table, figure)] / 1e9


def _time(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.3g} us"
