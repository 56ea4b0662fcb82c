"""References between real processes: kill -9 of users and owners, and copies of large values."""

import asyncio
import signal

import numpy as np
import pytest
import rref_things as things
from rref_crew import Team, until

from psframework.errors import PeerLost
from psframework.wire.lanes import Lane, available

SIZE = 256 << 20


async def test_a_killed_user_leaves_nothing(team: Team) -> None:
    """The owner drops its forks once the membership says so, and not before."""
    ann, bob = await team.hire("ann"), await team.hire("bob")
    process = await team.process("user")
    theirs, mine = ann.rrefs.remote("bob", things.Counter), ann.rrefs.rref("mine")
    await ann.rpc("user", things.keep, [theirs, mine] * 10, timeout=30)
    theirs.close()
    mine.close()
    await until(lambda: len(ann.account.user) == len(ann.account.outgoing) == 0)
    assert (len(ann.rrefs.table), len(bob.rrefs.table)) == (1, 1)
    process.send_signal(signal.SIGKILL)
    await process.wait()
    assert (len(ann.rrefs.table), len(bob.rrefs.table)) == (1, 1)
    team.bury("user")
    await team.clean()


async def test_a_user_killed_in_the_midst_of_a_call(team: Team) -> None:
    ann, bob = await team.hire("ann"), await team.hire("bob")
    process = await team.process("user")
    await ann.rpc("user", things.use, [], timeout=30)
    rrefs = [ann.rrefs.remote("bob", things.array, (n,)) for n in range(50)]
    calls = [
        ann.rpc("user", function, [rref, ann.rrefs.rref(1)])
        for rref, function in zip(rrefs, [things.keep, things.hold] * 25)
    ]
    await calls[0]
    process.send_signal(signal.SIGKILL)
    await asyncio.wait(calls)
    assert all(isinstance(call.exception(), PeerLost) for call in calls[1::2])
    values = await asyncio.gather(*(rref.to_here() for rref in rrefs))  # ann's own are as good as before
    assert [len(value) for value in values] == list(range(50))
    team.bury("user")
    del rrefs, calls
    await team.clean()
    assert len(bob.rrefs.table) == 0


async def test_a_killed_owner(team: Team) -> None:
    ann, bob = await team.hire("ann"), await team.hire("bob")
    process = await team.process("owner")
    rrefs = [ann.rrefs.remote("owner", things.Counter, (n,), timeout=30) for n in range(3)]
    await asyncio.gather(*(rref.confirmed_by_owner() for rref in rrefs))
    await ann.rpc("bob", things.keep, rrefs)
    making = ann.rrefs.remote("owner", things.slow)
    pending = [asyncio.ensure_future(making.to_here()), rrefs[0].rpc_async().add_later(1)]
    process.send_signal(signal.SIGKILL)
    loop = asyncio.get_running_loop()
    begin = loop.time()
    await asyncio.wait(pending[1:])  # the connection is closed, and can't be resumed
    assert isinstance(pending[1].exception(), PeerLost)
    team.bury("owner")  # so says the membership
    await asyncio.wait(pending[:1])
    assert isinstance(pending[0].exception(), PeerLost)
    assert loop.time() - begin < 4
    for rref in [making, *rrefs, *things.kept]:
        with pytest.raises(PeerLost, match="owner"):
            await rref.to_here()
        with pytest.raises(PeerLost, match="owner"):
            rref.rpc_async().add()
        with pytest.raises(PeerLost, match="owner"):
            ann.rpc("bob", things.use, [rref])
    del rrefs, making, pending, rref
    things.kept.clear()
    await team.clean()
    assert not bob.account.user.owners


@pytest.mark.skipif(Lane.SHM not in available(), reason="no shared memory here")
async def test_a_large_value_is_copied_once(team: Team) -> None:
    """256 MiB come here on one host: one copy, by the owner, into the segment; here it is a view of that."""
    ann = await team.hire("ann")
    await team.process("owner")
    rref = ann.rrefs.remote("owner", things.array, (SIZE // 8,), timeout=30)
    await rref.confirmed_by_owner()
    peer = ann.worker.agent.peer_for("owner")
    assert peer is not None
    received = peer.stats.received
    before = {lane: traffic.nbytes for lane, traffic in received.items()}
    value = await rref.to_here(timeout=50)
    assert value.nbytes == SIZE
    assert {lane: received[lane].nbytes - before[lane] for lane in Lane if received[lane].nbytes} == {
        Lane.SHM: SIZE
    }
    assert not value.flags.owndata
    base = value
    while isinstance(base, np.ndarray):
        base = base.base
    assert isinstance(base, memoryview)
    assert value[-1] == SIZE // 8 - 1
