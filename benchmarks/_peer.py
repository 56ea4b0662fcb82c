"""What every benchmark shares: sides in processes of their own, interleaved repetitions, one table of ratios.

A *side* is one implementation of the same work: ours, or a peer's. Each runs as its own process, pinned to
the same cores and with the same allocator settings, and is asked for one repetition at a time, so that a slow
minute of the machine hits all sides alike.

A side's program speaks a line protocol: it prints `ready`, then for each line `case` on stdin prints one JSON
number (the figure of one repetition) on stdout. `serve_side` implements that.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import importlib.util
import json
import os
import select
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

READY = "ready"
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
SECONDS = 180.0


def set_allocator() -> None:
    """DESIGN D12's allocator, for every side alike: big blocks stay in the heap (glibc only)."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return
    mallopt(M_MMAP_THRESHOLD, 1 << 30)
    mallopt(M_TRIM_THRESHOLD, (1 << 31) - 1)


def pin(core: int) -> None:
    """Keeps this process on one core, if there are several and PSF_BENCH_PIN is not 0."""
    cores = sorted(os.sched_getaffinity(0))
    if os.environ.get("PSF_BENCH_PIN", "1") != "0":
        os.sched_setaffinity(0, {cores[core % len(cores)]})


def pin_threads(core: int) -> None:
    """The same for a process that has threads already; each is pinned, and those that they start."""
    cores = sorted(os.sched_getaffinity(0))
    if os.environ.get("PSF_BENCH_PIN", "1") != "0":
        spread_threads({cores[core % len(cores)]})


def spread_threads(cores: Set[int]) -> None:
    """Lets all threads of this process run on these cores, and no others."""
    for thread in os.listdir("/proc/self/task"):
        with contextlib.suppress(ProcessLookupError):
            os.sched_setaffinity(int(thread), cores)


def serve_side(cases: Mapping[str, Callable[[], float]]) -> None:
    """Runs a side's program: answers repetitions until stdin closes."""
    print(READY, flush=True)
    for line in sys.stdin:
        print(json.dumps(cases[line.strip()]()), flush=True)


def percentile(samples: Sequence[float], share: float) -> float:
    """The sample below which `share` of all samples lie."""
    ordered = sorted(samples)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def add_torch_argument(parser: argparse.ArgumentParser) -> None:
    """Adds --torch-python (default PSF_TORCH_PYTHON, else this interpreter if it has torch)."""
    default = os.environ.get("PSF_TORCH_PYTHON") or (sys.executable if _has_torch() else "")
    parser.add_argument(
        "--torch-python", default=default, help="interpreter that has torch, for the peer's side"
    )


def _has_torch() -> bool:
    return has("torch")


def has(module: str) -> bool:
    """Whether this interpreter has a module."""
    return importlib.util.find_spec(module) is not None


def add_hips_argument(parser: argparse.ArgumentParser) -> None:
    """Adds --hips-python (default PSF_HIPS_PYTHON, else this interpreter if it has HIPS autograd)."""
    default = os.environ.get("PSF_HIPS_PYTHON") or (sys.executable if has("autograd") else "")
    parser.add_argument("--hips-python", default=default, help="interpreter that has HIPS autograd, a peer")


@dataclass
class Side:
    """One implementation, as a process.

    Args:
        name: its column in the table.
        command: its program and arguments.
        environment: variables to add.
        same: cases that it runs under another name.
    """

    name: str
    command: Sequence[str]
    environment: Mapping[str, str] = field(default_factory=dict)
    same: Mapping[str, str] = field(default_factory=dict)
    _process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        root = Path(__file__).parent.parent
        env = os.environ | {"PYTHONPATH": str(root), "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        env |= {"GRPC_VERBOSITY": "ERROR", "GLOO_SOCKET_IFNAME": "lo", "TP_SOCKET_IFNAME": "lo"}
        self._process = subprocess.Popen(
            list(self.command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=env | dict(self.environment),
        )
        self._expect(lambda line: line == READY)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        process = self._process
        assert process is not None and process.stdin is not None
        process.stdin.close()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def run(self, case: str) -> float:
        """One repetition of a case."""
        assert self._process is not None and self._process.stdin is not None
        self._process.stdin.write(self.same.get(case, case) + "\n")
        self._process.stdin.flush()
        return float(json.loads(self._expect(_is_number)))

    def _expect(self, wanted: Callable[[str], bool]) -> str:
        assert self._process is not None and self._process.stdout is not None
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            if select.select([self._process.stdout], [], [], 1.0)[0]:
                line = self._process.stdout.readline()
                if not line:
                    raise RuntimeError(f"the side {self.name!r} ended with code {self._process.wait()}")
                if wanted(line.strip()):
                    return line.strip()
        raise RuntimeError(f"the side {self.name!r} did not answer within {SECONDS:.0f} s")


def _is_number(line: str) -> bool:
    try:
        return isinstance(json.loads(line), int | float)
    except ValueError:
        return False


Figures = dict[str, dict[str, list[float]]]


def interleave(sides: Sequence[Side], cases: Sequence[str], reps: int = 5) -> Figures:
    """Runs every case on every side in turn, `reps` times after a warm-up: case -> side -> figures."""
    figures: Figures = {case: {side.name: [] for side in sides} for case in cases}
    for case in cases:
        for rep in range(reps + 1):
            for side in sides if rep % 2 else list(reversed(sides)):
                value = side.run(case)
                if rep:
                    figures[case][side.name].append(value)
    return figures


@dataclass(frozen=True)
class Row:
    """How a case is shown.

    Args:
        case: its name.
        label: what people read.
        unit: of the figure.
        scale: factor from the figure to the unit.
        target: our ratio to the first peer that the budget asks for.
        lower_is_better: whether the figure is a time.
        limit: what our own figure may be at most (at least, if higher is better), in the unit.
    """

    case: str
    label: str
    unit: str
    scale: float = 1.0
    target: float | None = None
    lower_is_better: bool = False
    limit: float | None = None


def report(figures: Figures, rows: Sequence[Row], *, ours: str, peers: Sequence[str]) -> bool:
    """Prints median [min..max] of every side and our ratio to each peer; returns whether targets are met."""
    met = True
    names = [ours, *peers]
    width = max(len(row.label) for row in rows)
    print(f"{'':{width}}  " + "  ".join(f"{name:>28}" for name in names) + "   ratio (target)")
    for row in rows:
        by_side = figures[row.case]
        cells = [_cell(by_side.get(name, []), row) for name in names]
        ratios = [_ratio(by_side, ours, peer) for peer in peers if by_side.get(peer)]
        verdict = "  ".join(f"{ratio:.2f}x" for ratio in ratios)
        if row.target is not None and ratios:
            good = ratios[0] <= row.target if row.lower_is_better else ratios[0] >= row.target
            met = met and good
            sign = "<=" if row.lower_is_better else ">="
            verdict += f"  ({sign} {row.target:g}x: {'met' if good else 'NOT MET'})"
        if row.limit is not None:
            figure = statistics.median(by_side[ours]) * row.scale
            good = figure <= row.limit if row.lower_is_better else figure >= row.limit
            met = met and good
            sign = "<=" if row.lower_is_better else ">="
            verdict += f"  ({sign} {row.limit:g} {row.unit}: {'met' if good else 'NOT MET'})"
        print(f"{row.label:{width}}  " + "  ".join(f"{cell:>28}" for cell in cells) + f"   {verdict}")
    return met


def _cell(values: Sequence[float], row: Row) -> str:
    if not values:
        return "-"
    low, middle, high = (f(values) * row.scale for f in (min, statistics.median, max))
    return f"{middle:.4g} [{low:.4g}..{high:.4g}] {row.unit}"


def _ratio(by_side: Mapping[str, Sequence[float]], ours: str, peer: str) -> float:
    return statistics.median(by_side[ours]) / statistics.median(by_side[peer])
