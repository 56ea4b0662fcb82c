"""How full buckets leave: at once, or seen off by a task; errors end the step, and are told."""

import asyncio
from typing import Any

import numpy as np

import psframework as psf
from psframework.collective.group import ProcessGroup
from psframework.ddp.bucket import Bucket
from psframework.ddp.flight import Flight
from psframework.ddp.step import Attended, Departure, Direct, Step
from psframework.errors import CollectiveMismatch
from tests.support.ddp_ranks import Table


def bucket(group: ProcessGroup, index: int, value: float) -> Bucket:
    buffer = np.full(4, value)
    return Bucket(index, buffer, [psf.tensor(buffer.copy(), requires_grad=True)], [f"p{index}"], [0], group)


async def fly(group: ProcessGroup, kind: str, scale: float = 1.0, fails: bool = False) -> Any:
    """Two buckets, and what follows; returns their buffers, or the error."""
    events: list[str] = []

    async def hook(bucket: Bucket) -> None:
        events.append(f"hook {bucket.index}")
        await bucket.group.all_reduce(bucket.buffer, psf.ReduceOp.AVG)

    async def sparse(scale: float) -> None:
        events.append(f"sparse {scale}")

    flight = Flight(group, lambda error: None)
    departure: Departure
    if kind == "direct":
        departure = Direct(flight, scale, lambda: events.append("after"))
    else:
        given = hook if kind == "hook" else None
        departure = Attended(flight, scale, lambda: events.append("after"), given, sparse)
    step = Step(flight, departure)
    buckets = [bucket(group, index, group.rank + 10.0 * index) for index in range(2)]

    def run() -> None:
        with step:
            step.launch(buckets[0])
            if fails:
                raise ValueError("stop")
            step.launch(buckets[1])

    await psf.compute(run)
    await flight.wait()
    error = flight.taken()
    if error is not None:
        return error
    assert all(span.ended >= span.began > 0 for span in step.flown) and len(step.flown) == 2
    return events, [each.buffer.tolist() for each in buckets]


async def everywhere(size: int, kind: str, **options: Any) -> list[Any]:
    groups = Table(size).groups()
    return await asyncio.gather(*[fly(group, kind, **options) for group in groups])


async def test_buckets_are_averaged_and_scaled_and_what_follows_comes_last() -> None:
    for kind, events in {
        "direct": ["after"],
        "hook": ["hook 0", "hook 1", "sparse 3.0", "after"],
        "sparse": ["sparse 3.0", "after"],
    }.items():
        for found in await everywhere(3, kind, scale=3.0):
            assert found == (events, [[3.0] * 4, [33.0] * 4]), kind


async def test_an_error_of_one_rank_ends_the_step_on_all() -> None:
    for kind in ("direct", "hook", "sparse"):
        groups = Table(2).groups()
        first, second = await asyncio.gather(fly(groups[0], kind), fly(groups[1], kind, fails=True))
        assert isinstance(first, CollectiveMismatch) and "ValueError: stop" in str(first)
        assert isinstance(second, ValueError)
        again = await asyncio.gather(*[fly(group, kind) for group in groups])
        assert again[0] == again[1]
