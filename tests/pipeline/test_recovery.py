"""Recovery: after a failure all ranks stand at the newest commit, and what came after it was done again.

Deaths of services are in `test_ranks`, which go through all of this; here are the decisions.
"""

from typing import Any

import numpy as np
import pytest

from psframework.errors import ContextClosed, DeadlineExceeded, PeerLost
from psframework.pipeline.history import History
from psframework.pipeline.microbatch import split
from psframework.pipeline.ranks import Seat
from psframework.pipeline.recovery import RETRIES, Recovery
from psframework.rpc.deadline import Deadline

BATCH = split(np.zeros((4, 1)), np.zeros(4), 2)


class Pipe:
    """Ranks, runs and training that note what they are asked for."""

    plan = "plan"
    number = 7

    def __init__(self, commit_every: int = 2) -> None:
        self.history = History(commit_every)
        self.seats = [Seat(0, 0), Seat(1, 0)]
        self.lost: set[Seat] = set()
        self.dead: set[Seat] = set()
        self.closed = False
        self.fails = ""  # that does so at once, when there has been a replacement
        self.did: list[Any] = []
        self.recovery = Recovery(self, self, self)  # type: ignore[arg-type]

    def named(self, error: PeerLost) -> PeerLost:
        return error

    def check_open(self) -> None:
        if self.closed:
            raise ContextClosed("this pipeline is closed")

    async def look(self, deadline: Deadline) -> None:
        self.lost |= self.dead

    async def call(self, method: str, *args: Any, deadline: Deadline, seats: Any = None) -> list[Any]:
        self._do(method, len(self.seats if seats is None else seats))
        return []

    async def replace_lost(self, *_: Any) -> None:
        self._do("replace", len(self.lost))
        self.lost.clear()
        self.dead.clear()

    async def train(self, done: Any, deadline: Deadline) -> None:
        self._do("train", done.step)

    def _do(self, what: str, number: int) -> None:
        self.did.append((what, number))
        if what == self.fails and (not self.lost or what == "replace"):
            self.fails = ""
            raise DeadlineExceeded("too late")

    def step(self) -> None:
        self.history.add(self.history.place(BATCH, True), self.number)


async def test_nothing_happens_unless_something_failed() -> None:
    pipe = Pipe()
    await pipe.recovery.settle(Deadline.NEVER)
    assert not pipe.did


async def test_all_go_back_and_what_came_after_the_commit_is_done_again() -> None:
    pipe = Pipe(commit_every=3)
    for _ in range(5):
        pipe.step()
    pipe.recovery.unsettled = True
    await pipe.recovery.settle(Deadline.NEVER)
    assert pipe.did == [("abort", 2), ("go_back", 2), ("train", 3), ("train", 4)]
    assert not pipe.recovery.unsettled


async def test_lost_ranks_are_replaced_and_all_hear_of_it() -> None:
    pipe = Pipe()
    pipe.dead.add(Seat(1, 0))
    pipe.recovery.unsettled = True
    await pipe.recovery.settle(Deadline.NEVER)
    assert [each for each in pipe.did if each[0] in ("go_back", "replace", "keep_elsewhere")] == [
        ("go_back", 1),
        ("replace", 1),
        ("go_back", 2),
        ("keep_elsewhere", 2),
    ]


@pytest.mark.parametrize("during", ["replace", "go_back", "keep_elsewhere", "train"])
async def test_a_recovery_that_was_given_up_is_begun_again(during: str) -> None:
    """Whoever was known to be lost has been replaced already, or not."""
    pipe = Pipe()
    pipe.step()
    pipe.lost.add(Seat(1, 0))
    pipe.fails = during
    with pytest.raises(DeadlineExceeded):
        await pipe.recovery.settle(Deadline.NEVER)
    pipe.did.clear()
    await pipe.recovery.settle(Deadline.NEVER)
    assert {"go_back", "train"} <= {each[0] for each in pipe.did}
    assert (("keep_elsewhere", 2) in pipe.did) is (during != "train")


async def test_a_run_is_repeated_when_the_lost_are_replaced() -> None:
    pipe = Pipe()
    runs: list[int] = []

    async def run() -> str:
        runs.append(len(runs))
        if len(runs) <= 5:  # another death each time
            pipe.dead.add(Seat(1, 0))
            raise PeerLost("stage-1 is gone")
        return "done"

    assert await pipe.recovery.repeatedly(run, Deadline.NEVER) == "done"
    assert len(runs) == 6


async def test_a_run_that_fails_while_nobody_is_lost_is_repeated_only_a_few_times() -> None:
    pipe = Pipe()
    runs: list[int] = []

    async def run() -> None:
        runs.append(len(runs))
        raise PeerLost("no way from stage-0 to stage-1")

    with pytest.raises(PeerLost, match="no way"):
        await pipe.recovery.repeatedly(run, Deadline.NEVER)
    assert len(runs) == RETRIES + 1 and pipe.recovery.unsettled


async def test_a_deadline_ends_the_tries() -> None:
    pipe = Pipe()

    async def run() -> None:
        pipe.dead.add(Seat(1, 0))
        raise PeerLost("stage-1 is gone")

    with pytest.raises(PeerLost):
        await pipe.recovery.repeatedly(run, Deadline.after(0.0))


async def test_a_pipe_that_was_closed_is_not_brought_back() -> None:
    pipe = Pipe()
    pipe.closed = pipe.recovery.unsettled = True
    with pytest.raises(ContextClosed):
        await pipe.recovery.settle(Deadline.NEVER)
    assert not pipe.did
