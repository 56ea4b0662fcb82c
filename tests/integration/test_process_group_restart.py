"""Process groups that are being made while the coordinator restarts."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import numpy as np
import pytest

import psframework as psf
from psframework.cluster.local import LocalCluster
from psframework.collective import setup
from psframework.collective.gathering import Gathering
from psframework.collective.seat import Seat

NAMES = ("a", "b", "c")
PREPARE = setup.prepare


@pytest.fixture(scope="module")
async def local() -> AsyncIterator[LocalCluster]:
    async with psf.local_cluster() as local:
        yield local


class Gate:
    """Ranks come to a point of the set-up, and go on when it opens."""

    def __init__(self) -> None:
        self.came: set[int] = set()
        self.everybody, self._open = asyncio.Event(), asyncio.Event()

    async def go_through(self, rank: int, of: int) -> None:
        self.came.add(rank)
        if len(self.came) == of:
            self.everybody.set()
        await self._open.wait()

    def open(self) -> None:
        self._open.set()


@pytest.fixture(params=["before anybody is ready", "when all are ready"])
def gate(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Gate:
    """Between the sealing of a group and the word of rank 0 how it starts."""
    gate = Gate()
    if request.param == "before anybody is ready":

        async def prepare(seat: Seat, *more: Any) -> Any:
            await gate.go_through(seat.rank, len(NAMES))
            return await PREPARE(seat, *more)

        monkeypatch.setattr(setup, "prepare", prepare)
    else:
        decide = Gathering._decide

        async def wait(self: Gathering, *more: Any) -> None:
            await gate.go_through(0, 1)
            await decide(self, *more)

        monkeypatch.setattr(Gathering, "_decide", wait)
    return gate


@pytest.mark.parametrize("down", [False, True])
@pytest.mark.parametrize("algorithm", [None, pytest.param("direct", marks=pytest.mark.soak)])
async def test_between_the_seal_and_the_start(
    local: LocalCluster, gate: Gate, down: bool, algorithm: str | None
) -> None:
    """`down`: ranks go on while there is no coordinator; else when there is one again."""
    async with AsyncExitStack() as stack:
        members = [
            await stack.enter_async_context(psf.connect(local.address, name=name, timeout=60))
            for name in NAMES
        ]
        making = [
            asyncio.ensure_future(each.process_group("g", len(NAMES), rank=rank, algorithm=algorithm))
            for rank, each in enumerate(members)
        ]
        await asyncio.wait_for(gate.everybody.wait(), 20)
        if down:
            local.processes["coordinator"].kill()
            gate.open()
            await asyncio.wait(making, timeout=0.5)
            assert not any(each.done() for each in making)
        await local.restart("coordinator")
        gate.open()
        groups = await asyncio.wait_for(asyncio.gather(*making), 40)
        sums = [np.full(1000, rank + 1.0) for rank in range(len(NAMES))]
        await asyncio.gather(*(group.all_reduce(each) for group, each in zip(groups, sums)))
        assert [float(each[-1]) for each in sums] == [6.0] * 3
        assert {group.generation for group in groups} == {groups[0].generation}


async def test_while_members_are_missing(local: LocalCluster) -> None:
    """Those that came before the restart and those that come after it are in one group."""
    async with AsyncExitStack() as stack:
        a, b = [
            await stack.enter_async_context(psf.connect(local.address, name=name, timeout=60))
            for name in "ab"
        ]
        first = asyncio.ensure_future(a.process_group("g", 2))
        async with asyncio.timeout(20):
            while not await a.membership.kv.list("group/default/g/"):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        await local.restart("coordinator")
        groups = await asyncio.wait_for(asyncio.gather(first, b.process_group("g", 2)), 40)
        assert [each.members for each in groups] == [("a", "b")] * 2
        assert await asyncio.gather(*(each.barrier() for each in groups)) == [None, None]
