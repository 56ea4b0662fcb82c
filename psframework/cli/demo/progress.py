"""What the trainers said so far, as plain state: the dashboard shows it, the picture draws it. No I/O here.

Trainers write one JSON object a line; `accept` takes them in any interleaving and skips what it doesn't know.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

PHASES = ("data", "compute", "server", "evaluate")
"""Where a trainer's time goes: batches, forward and backward, parameter server and its waits, tests."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """Payload bytes, sent and received, by lane and by shard."""

    lanes: dict[str, int] = field(default_factory=dict)
    shards: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class TrainerState:
    """The newest of one trainer."""

    name: str
    step: int = 0
    loss: float = float("nan")
    state: str = "starting"
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PHASES, 0.0))
    lanes: dict[str, int] = field(default_factory=dict)
    shards: dict[str, int] = field(default_factory=dict)
    recent: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=64))

    def steps_per_second(self) -> float:
        """Over the last 64 steps; 0 before there are two."""
        if len(self.recent) < 2:
            return 0.0
        (t0, s0), (t1, s1) = self.recent[0], self.recent[-1]
        return (s1 - s0) / (t1 - t0) if t1 > t0 else 0.0


@dataclass(slots=True)
class ShardState:
    """The newest load of one shard: totals since its start."""

    updates: int = 0
    busy: float = 0.0


@dataclass(slots=True)
class Point:
    """One step of one trainer; `time` in seconds since the start, `bytes` moved by that trainer so far."""

    time: float
    trainer: str
    step: int
    loss: float
    bytes: int


@dataclass(slots=True)
class Progress:
    """State of a run.

    Args:
        total: steps that each trainer will do, with those done before a resume.
    """

    total: int
    first: int = 0
    trainers: dict[str, TrainerState] = field(default_factory=dict)
    shards: dict[str, ShardState] = field(default_factory=dict)
    points: list[Point] = field(default_factory=list)
    accuracies: list[tuple[float, int, int, float]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    result: dict[str, float] | None = None
    started: float | None = None
    ended: float | None = None

    def accept_line(self, line: str, now: float) -> bool:
        """Takes one line of a trainer's output; False if it is no event (a log line, say)."""
        if not line.startswith('{"kind"'):
            return False
        try:
            event = json.loads(line)
        except ValueError:
            return False
        self.accept(event, now)
        return True

    def accept(self, event: dict[str, object], now: float) -> None:
        """Takes one event. `now` is a monotonic time in seconds."""
        handlers = {
            "start": self._start,
            "step": self._step,
            "epoch": self._epoch,
            "shards": self._shards,
            "done": self._done,
        }
        handler = handlers.get(str(event.get("kind")))
        if handler is not None:
            handler(event, now)

    def trainer_ended(self, name: str, returncode: int | None) -> None:
        """The process of a trainer is gone."""
        state = self.trainer(name)
        if state.state != "done" or returncode:
            state.state = "killed" if returncode == -9 else f"ended ({returncode})"
        else:
            state.state = "done"

    def trainer(self, name: str) -> TrainerState:
        """State of the trainer `name`, made on first use."""
        return self.trainers.setdefault(name, TrainerState(name))

    @property
    def step(self) -> int:
        """The step of the farthest trainer."""
        return max((trainer.step for trainer in self.trainers.values()), default=self.first)

    @property
    def elapsed(self) -> float:
        """Seconds of training, from the first step's start to the last step's end."""
        return (self.ended or 0.0) - self.started if self.started is not None else 0.0

    def lanes(self) -> dict[str, int]:
        """Bytes by lane, of all trainers together."""
        return _total(trainer.lanes for trainer in self.trainers.values())

    def shard_bytes(self) -> dict[str, int]:
        """Bytes to and from each shard, of all trainers together."""
        return _total(trainer.shards for trainer in self.trainers.values())

    def seconds(self) -> dict[str, dict[str, float]]:
        """Seconds by trainer and phase."""
        return {name: dict(trainer.seconds) for name, trainer in sorted(self.trainers.items())}

    def _start(self, event: dict[str, object], now: float) -> None:
        self.started = now if self.started is None else self.started
        trainer = self.trainer(str(event["trainer"]))
        trainer.state, trainer.step = "training", _integer(event["step"])
        trainer.recent.append((now, trainer.step))

    def _step(self, event: dict[str, object], now: float) -> None:
        trainer = self.trainer(str(event["trainer"]))
        trainer.step, trainer.loss = _integer(event["step"]), _number(event["loss"])
        moment = _number(event["time"])
        trainer.recent.append((moment, trainer.step))
        trainer.seconds.update(_numbers(event["seconds"]))
        trainer.lanes.update({lane: int(count) for lane, count in _numbers(event["lanes"]).items()})
        trainer.shards.update({shard: int(count) for shard, count in _numbers(event["shards"]).items()})
        self.ended = now
        since = moment - self.started if self.started is not None else 0.0
        self.points.append(
            Point(since, trainer.name, trainer.step, trainer.loss, sum(trainer.lanes.values()))
        )

    def _epoch(self, event: dict[str, object], now: float) -> None:
        since = now - self.started if self.started is not None else 0.0
        self.ended = now
        entry = (since, _integer(event["step"]), _integer(event["epoch"]), _number(event["accuracy"]))
        self.accuracies.append(entry)

    def _shards(self, event: dict[str, object], now: float) -> None:
        shards = event["shards"]
        if isinstance(shards, dict):
            for name, load in shards.items():
                values = _numbers(load)
                self.shards[str(name)] = ShardState(
                    updates=int(values.get("updates", 0)),
                    busy=values.get("busy", 0.0),
                )

    def _done(self, event: dict[str, object], now: float) -> None:
        self.trainer(str(event["trainer"])).state = "done"
        if "accuracy" in event:
            self.result = {key: _number(event[key]) for key in ("accuracy", "step", "epoch")}


def _total(parts: Iterable[dict[str, int]]) -> dict[str, int]:
    total: dict[str, int] = {}
    for part in parts:
        for key, count in part.items():
            total[key] = total.get(key, 0) + count
    return total


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) else float("nan")


def _integer(value: object) -> int:
    return int(value) if isinstance(value, int | float) else 0


def _numbers(value: object) -> dict[str, float]:
    return {str(key): _number(item) for key, item in value.items()} if isinstance(value, dict) else {}
