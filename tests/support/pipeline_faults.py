"""Stages that kill their process, or stand still, when a file says so; stage services import this."""

import gc
import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import psframework as psf
from psframework import nn
from tests.support.pipeline_models import CLASSES, WIDTH

PHASES = ("forward", "steady", "drain", "optimizer", "commit")


@psf.remote
class Fatal(nn.Module):
    """A layer whose process dies once, in a phase of a step; the file goes before it does.

    Args:
        stage: its number.
        last: whether it gives classes.
        trigger: file with {"stage": int, "phase": str, "how": str}; none: nothing happens.
    """

    def __init__(self, stage: int, last: bool, trigger: str) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, CLASSES if last else WIDTH, dtype=np.float64)
        self.stage, self.last, self.trigger = stage, last, Path(trigger)
        self.forwards = self.backwards = 0
        self.register_full_backward_hook(self._backward)

    @staticmethod
    def living() -> int:
        """How many of them there are in this process."""
        gc.collect()
        return sum(isinstance(each, Fatal) for each in gc.get_objects())

    def forward(self, x: psf.Tensor) -> psf.Tensor:
        self.forwards += 1
        if self.training:
            self._perhaps("forward" if self.forwards == 1 else "steady" if self.forwards == 3 else "")
        y = self.layer(x)
        return y if self.last else y.tanh()

    def _backward(self, *_: Any) -> None:
        self.backwards += 1
        self._perhaps("drain" if self.backwards == 4 else "")

    def zero_grad(self, set_to_none: bool = True) -> None:
        if self.backwards:
            self._perhaps("optimizer")
        self.forwards = self.backwards = 0
        super().zero_grad(set_to_none)

    def state_dict(self, prefix: str = "", *, copy: bool = True) -> dict[str, Any]:
        self._perhaps("commit")
        return super().state_dict(prefix, copy=copy)

    def _perhaps(self, phase: str) -> None:
        try:
            wanted = json.loads(self.trigger.read_text())
        except (FileNotFoundError, json.JSONDecodeError):
            return
        if phase != wanted["phase"] or self.stage != wanted["stage"]:
            return
        try:
            self.trigger.unlink()
        except FileNotFoundError:
            return  # another replica was first
        if wanted["how"] == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif wanted["how"] == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        elif wanted["how"] == "error":
            raise ValueError("a fault of the stage")
        else:
            time.sleep(float(wanted["how"]))


def arm(trigger: Path, stage: int, phase: str, how: str = "kill") -> None:
    """Says what happens next; all at once, so that nobody reads half of it."""
    half = trigger.with_suffix(".new")
    half.write_text(json.dumps({"stage": stage, "phase": phase, "how": how}))
    half.rename(trigger)


def fatal(stages: int, trigger: Path) -> Iterator[tuple[type[nn.Module], tuple[Any, ...]]]:
    """So many stages."""
    for stage in range(stages):
        yield Fatal, (stage, stage == stages - 1, str(trigger))
