"""RRefs of one connection: making them, and the end."""

import asyncio
import gc

import numpy as np
import psutil
import pytest
import rref_things as things
from rref_crew import Team, until

from psframework.errors import (
    ArgumentError,
    ContextClosed,
    DeadlineExceeded,
    Evicted,
    NotRegistered,
    PeerLost,
)


async def test_what_is_refused_at_once(team: Team) -> None:
    ann, _ = await team.hire("ann"), await team.hire("bob")
    with pytest.raises(PeerLost, match="nobody"):
        ann.rrefs.remote("nobody", things.Counter)
    with pytest.raises(NotRegistered, match=r"@psf\.remote"):
        ann.rrefs.remote("bob", things.Unregistered)
    with pytest.raises(TypeError, match=r"args\[0\]"):
        ann.rrefs.remote("bob", things.Counter, (object(),))
    with pytest.raises(ArgumentError, match="timeout"):
        ann.rrefs.remote("bob", things.Counter, timeout=-1)
    await team.clean()


async def test_to_the_owner_of_another(team: Team) -> None:
    ann, bob = await team.hire("ann"), await team.hire("bob")
    first = ann.rrefs.remote("bob", things.Counter, (1,))
    second = ann.rrefs.remote(first, things.Counter, (2,), timeout=0)
    assert second.owner_name() == "bob"
    assert await ann.worker.remote.rpc_async(first, things.size, (np.zeros(3),)) == 24
    assert await second.rpc_async(timeout=0).add() == 3
    assert len(bob.rrefs.table) == 2


async def test_leaving_names_who_still_holds_what(team: Team, caplog: pytest.LogCaptureFixture) -> None:
    ann, bob = await team.hire("ann"), await team.hire("bob")
    rref = ann.rrefs.remote("bob", things.Counter)
    await rref.confirmed_by_owner()
    (problem,) = await bob.rrefs.close(timeout=1)
    assert f"RRef {rref.id} (rref_things.Counter)" in problem and "held by ann" in problem


async def test_leaving_waits_for_what_is_being_made(team: Team) -> None:
    ann, bob = await team.hire("ann"), await team.hire("bob")
    rref = ann.rrefs.remote("bob", things.Counter, (9,), {"seconds": 0.3})
    assert await ann.rrefs.close(timeout=5) == []
    assert things.made == [9]
    assert len(bob.rrefs.table) == 0
    with pytest.raises(ContextClosed):
        rref.rpc_async().add()


async def test_leaving_never_hangs(team: Team) -> None:
    ann, bob = await team.hire("ann"), await team.hire("bob")
    rrefs = [ann.rrefs.remote("bob", things.slow, (30.0,)) for _ in range(3)]
    (problem,) = await asyncio.wait_for(ann.rrefs.close(timeout=0.2), 3)
    assert "bob did not confirm that 3 references are deleted" in problem
    assert len(rrefs) == len(bob.rrefs.table) == 3


async def test_leaving_ends_all_waiting(team: Team) -> None:
    ann = await team.hire("ann")
    rref = ann.rrefs.remote("ann", things.slow, (30.0,))
    waiting = asyncio.ensure_future(rref.confirmed_by_owner())
    await asyncio.sleep(0)
    ann.rrefs.abort()
    with pytest.raises(ContextClosed, match="left"):
        await asyncio.wait_for(waiting, 3)


async def test_evicted(team: Team) -> None:
    ann, _ = await team.hire("ann"), await team.hire("bob")
    theirs, mine = ann.rrefs.remote("bob", things.Counter), ann.rrefs.rref("mine")
    await theirs.confirmed_by_owner()
    ann.rrefs.evicted(Evicted("the lease ran out"))
    for _ in range(2):
        with pytest.raises(Evicted, match="lease"):
            await theirs.to_here()
    assert mine.local_value() == "mine"
    late = ann.rrefs.remote("bob", things.Counter)
    assert not ann.worker.remote.outstanding()  # nothing is begun for nobody
    with pytest.raises(Evicted):
        await late.to_here()
    with pytest.raises(Evicted):
        await ann.rpc("bob", things.keep, [mine])
    assert not things.kept


async def test_a_stalled_member_is_not_dead(team: Team) -> None:
    ann, bob = await team.hire("ann"), await team.hire("bob")
    rref = ann.rrefs.remote("bob", things.Counter)
    await rref.confirmed_by_owner()
    ann.rrefs.lost(bob.worker.agent.identity, "stalled")
    assert await rref.rpc_async().add() == 1


async def test_waiting_for_the_owner_leaves_nothing(team: Team) -> None:
    ann, _ = await team.hire("ann"), await team.hire("bob")
    rref = ann.rrefs.remote("bob", things.Counter, (1,), {"gated": True})
    for _ in range(3):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(rref.confirmed_by_owner(), 0.01)
    assert not ann.rrefs.table.waiters
    things.gate.set()
    assert await rref.confirmed_by_owner()


async def test_a_cancelled_fetch_leaves_the_reference_good(team: Team) -> None:
    ann, bob = await team.hire("ann"), await team.hire("bob")
    rref = ann.rrefs.remote("bob", things.Counter, (1,), {"gated": True})
    fetch, call = asyncio.ensure_future(rref.to_here()), rref.rpc_async().add()
    await asyncio.sleep(0.05)
    fetch.cancel()
    call.cancel()
    await asyncio.wait([fetch, call])
    with pytest.raises(DeadlineExceeded):
        await rref.rpc_async(timeout=0.01).add()
    things.gate.set()
    assert await rref.rpc_async().add() == 2
    del rref, fetch, call
    await team.clean()
    assert len(bob.rrefs.table) == 0


# pytorch#31325 and the figure: 10,000 made and dropped
@pytest.mark.parametrize("count", [1_000, pytest.param(10_000, marks=pytest.mark.soak)])
async def test_made_and_dropped(team: Team, count: int) -> None:
    ann, bob = await team.hire("ann"), await team.hire("bob")
    process = psutil.Process()

    async def round() -> None:
        for _ in range(count // 100):
            rrefs = [ann.rrefs.remote("bob", things.Counter) for _ in range(100)]
            values = await asyncio.gather(*(rref.rpc_async().add() for rref in rrefs))
            assert values == [1] * 100
            del rrefs
        await team.clean()

    await round()
    gc.collect()
    before, files = process.memory_info().rss, process.num_fds()
    await round()
    gc.collect()
    assert len(bob.rrefs.table) == len(ann.rrefs.table) == 0
    assert process.memory_info().rss - before < 24 << 20  # the process has a gigabyte, of other tests too
    assert process.num_fds() <= files + 2
    await until(lambda: not ann.rrefs._control._lines and not bob.rrefs._control._lines, 20)
