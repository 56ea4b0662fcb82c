"""What a trainer says about itself: JSON lines for `psf demo`, or a line an epoch for people."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TextIO

from psframework.cli.demo.progress import PHASES, Traffic

_FLUSH_SECONDS = 0.1


class Reporter:
    """Keeps a trainer's clocks and writes its events.

    Args:
        trainer: its name.
        machine: True for JSON lines, False for text.
        out: where to write; default the standard output.
    """

    def __init__(self, trainer: str, *, machine: bool, out: TextIO | None = None):
        self.seconds = dict.fromkeys(PHASES, 0.0)
        self._trainer = trainer
        self._machine = machine
        self._out = out or sys.stdout
        self._flushed = 0.0

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Adds the time of the body to one of `PHASES`."""
        begun = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] += time.perf_counter() - begun

    def start(self, step: int) -> None:
        """Training begins, at this step."""
        self._write({"kind": "start", "trainer": self._trainer, "step": step}, flush=True)

    def step(self, step: int, loss: float, moved: Traffic) -> None:
        """A step is done; `moved` are the bytes so far."""
        if self._machine:
            event = {"step": step, "loss": loss, "time": time.monotonic(), "seconds": self.seconds}
            bytes_by = {"lanes": moved.lanes, "shards": moved.shards}
            self._write({"kind": "step", "trainer": self._trainer, **event, **bytes_by})

    def epoch(self, step: int, epoch: int, loss: float, accuracy: float) -> None:
        """An epoch is done and tested."""
        if self._machine:
            self._write({"kind": "epoch", "step": step, "epoch": epoch, "accuracy": accuracy}, flush=True)
        else:
            line = f"epoch {epoch:3d}  step {step:5d}  loss {loss:.4f}  accuracy {accuracy:.4f}"
            print(line, file=self._out, flush=True)

    def shards(self, shards: Mapping[str, Mapping[str, float]]) -> None:
        """What the shards have done so far."""
        if self._machine and shards:
            self._write({"kind": "shards", "shards": {name: dict(load) for name, load in shards.items()}})

    def done(self, result: Mapping[str, float] | None, lanes: Mapping[str, int]) -> None:
        """Training is over; `result` (accuracy, step, epoch) comes from the trainer that tested."""
        if self._machine:
            self._write({"kind": "done", "trainer": self._trainer, **(result or {})}, flush=True)
        elif result is not None:
            moved = ", ".join(f"{lane} {count / 1e6:.1f} MB" for lane, count in lanes.items() if count)
            print(f"moved {moved or 'nothing'}", file=self._out)
            print(f"test accuracy: {result['accuracy']:.3f}", file=self._out, flush=True)

    def _write(self, event: dict[str, object], *, flush: bool = False) -> None:
        if not self._machine:
            return
        self._out.write(json.dumps(event) + "\n")
        now = time.monotonic()
        if flush or now - self._flushed > _FLUSH_SECONDS:
            self._out.flush()
            self._flushed = now
