"""The sides of a comparison: processes of their own, which are asked for one repetition at a time.

A side's program speaks a line protocol: it prints `ready`, then for each line `case` on stdin prints one JSON
number (the figure of one repetition) on stdout. `serve_side` implements that. Sides take turns, so that a
slow minute of the machine hits all of them alike.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

READY = "ready"
OURS = "psframework"
SECONDS = 180.0
# Where a machine sets these they slow NumPy's BLAS and not torch's.
SLOWING = {"OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE"}
Figures = dict[str, dict[str, list[float]]]
"""Case -> side -> what its repetitions gave."""


def serve_side(cases: Mapping[str, Callable[[], float]]) -> None:
    """Runs a side's program: answers repetitions until stdin closes."""
    print(READY, flush=True)
    for line in sys.stdin:
        print(json.dumps(cases[line.strip()]()), flush=True)


def percentile(samples: Sequence[float], share: float) -> float:
    """The sample below which `share` of all samples lie."""
    ordered = sorted(samples)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


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
        env = {name: value for name, value in os.environ.items() if name not in SLOWING}
        env |= {"PYTHONPATH": str(root), "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
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


@contextmanager
def running(sides: Sequence[Side]) -> Iterator[None]:
    """Starts all sides; ends them when the block is left."""
    with ExitStack() as stack:
        for side in sides:
            stack.enter_context(side)
        yield


def interleave(sides: Sequence[Side], cases: Sequence[str], reps: int) -> Figures:
    """Runs every case on every side in turn, `reps` times after a warm-up."""
    figures: Figures = {case: {side.name: [] for side in sides} for case in cases}
    for case in cases:
        for rep in range(reps + 1):
            for side in sides if rep % 2 else list(reversed(sides)):
                value = side.run(case)
                if rep:
                    figures[case][side.name].append(value)
    return figures
