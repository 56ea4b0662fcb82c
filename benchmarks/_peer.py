"""What every benchmark's `main` shares: its arguments, its own side and the peer's, and one run of both.

Each side runs as its own process (`_side`), pinned to the same cores and with the same allocator (`_host`);
what they measured is shown in one table of ratios (`_table`).
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks._side import OURS, Figures, Side, interleave, running
from benchmarks._table import Row

MODULES = {"hips": "autograd"}  # of peers that are not called as their module is


def parse(
    doc: str | None,
    *,
    reps: int = 5,
    peers: Sequence[str] = ("torch",),
    flags: Mapping[str, Mapping[str, Any]] | None = None,
) -> argparse.Namespace:
    """Reads the command line, and says which peers will be missing.

    Args:
        doc: what --help shows.
        reps: default of --reps.
        peers: each has its own interpreter, such as --torch-python: by default PSF_TORCH_PYTHON, else this
            one if it has the module.
        flags: further ones, and their arguments of `add_argument`.

    Returns:
        What was asked for; `side` is not None in a process that `ours` has started, which is to serve.
    """
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reps", type=int, default=reps, help="repetitions, after one to warm up")
    parser.add_argument("--side", nargs="?", const=OURS, help=argparse.SUPPRESS)
    for peer in peers:
        module = MODULES.get(peer, peer)
        default = os.environ.get(f"PSF_{peer.upper()}_PYTHON") or (sys.executable if _has(module) else "")
        parser.add_argument(
            f"--{peer}-python", default=default, help=f"interpreter that has {module}, for the peer's side"
        )
    for flag, options in (flags or {}).items():
        parser.add_argument(flag, **options)
    args = parser.parse_args()
    for peer in peers:
        if args.side is None and not _python(args, peer):
            variable = f"PSF_{peer.upper()}_PYTHON"
            print(f"no {peer}: pass --{peer}-python, or set {variable}, to compare")
    return args


def _has(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


def _python(args: argparse.Namespace, peer: str) -> str:
    return str(getattr(args, f"{peer}_python"))


def ours(script: str, *arguments: str, environment: Mapping[str, str] | None = None) -> Side:
    """Our side: the benchmark itself, told to serve by --side, with these arguments behind that."""
    return Side(OURS, [sys.executable, script, "--side", *arguments], environment or {})


def theirs(
    args: argparse.Namespace, peer: str, script: str, *arguments: str, name: str = "", **options: Any
) -> list[Side]:
    """The peer's side, a script beside this one; none if no interpreter has the peer.

    Args:
        args: what `parse` returned.
        peer: whose interpreter runs it.
        script: the file's name.
        arguments: of the script.
        name: of the column, if it is not the peer's.
        options: of `Side`.
    """
    command = [_python(args, peer), str(Path(__file__).with_name(script)), *arguments]
    return [Side(name or peer, command, **options)] if command[0] else []


def engines(args: argparse.Namespace, script: str, names: Sequence[str]) -> list[Side]:
    """Sides that are the benchmark itself, each told by --side which it is; a peer runs in its own Python."""
    pythons = {name: getattr(args, f"{name}_python", sys.executable) for name in names}
    return [Side(name, [python, script, "--side", name]) for name, python in pythons.items() if python]


def measure(sides: Sequence[Side], rows: Sequence[Row], reps: int, own: Sequence[Row] = ()) -> Figures:
    """Runs the rows on all sides in turn, and then `own`, which only the first side has."""
    with running(sides):
        figures = interleave(sides, [row.case for row in rows], reps)
        return figures | interleave(sides[:1], [row.case for row in own], reps)
