"""psf.RRef: what it says, what it refuses, and how it is let go."""

import asyncio
import copy
import gc
import pickle
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import rref_things as things
from rref_crew import Team, until

from psframework.errors import (
    ArgumentError,
    ContextClosed,
    DeadlineExceeded,
    NotRegistered,
    PeerLost,
    RemoteError,
)

holder: Any = None  # a module global


async def test_user_and_owner(team: Team) -> None:
    ann, bob = await team.hire("ann"), await team.hire("bob")
    rref = ann.rrefs.remote("bob", things.Counter, (5,))
    assert (rref.owner_name(), rref.owner_incarnation, rref.is_owner()) == ("bob", bob.me, False)
    assert "creating" in repr(rref)
    assert await rref.confirmed_by_owner()
    assert "confirmed" in repr(rref)
    with pytest.raises(ArgumentError, match="to_here"):
        rref.local_value()
    value = [1, 2]
    mine = ann.rrefs.rref(value)
    assert (mine.owner_name(), mine.is_owner()) == ("ann", True)
    assert mine.local_value() is value
    assert await mine.to_here() is value
    assert await mine.confirmed_by_owner()
    assert "local" in repr(mine)


async def test_to_here_copies(team: Team) -> None:
    ann, bob = await team.hire("ann"), await team.hire("bob")
    rref = ann.rrefs.remote("bob", things.array, (10,))
    first = await rref.to_here()
    first[:] = 0
    assert (await rref.to_here()).sum() == 45
    assert len(bob.rrefs.table) == 1


async def test_proxies(team: Team) -> None:
    ann, _ = await team.hire("ann"), await team.hire("bob")
    rref = ann.rrefs.remote("bob", things.Counter, (5,))
    assert await rref.rpc_async().add(2) == 7
    assert await rref.rpc_async().add_later(n=3) == 10
    assert await rref.rpc_async().inherited() == "from the base"
    twin = rref.remote().twin()
    assert await twin.rpc_async().add() == 11
    assert await rref.rpc_async().add() == 11
    with pytest.raises(AttributeError, match="public"):
        rref.rpc_async()._private()
    with pytest.raises(AttributeError, match=r"no attribute 'add': `await rref\.rpc_async\(\)\.add\("):
        rref.add(1)  # type: ignore[attr-defined]
    with pytest.raises(NotRegistered, match="near it: add"):
        await rref.rpc_async().ad()
    other = ann.rrefs.remote("bob", things.unregistered)
    with pytest.raises(NotRegistered, match=r"@psf\.remote"):
        await other.rpc_async().method()


@pytest.mark.parametrize("owner", ["ann", "bob"])
async def test_methods_that_are_generators(team: Team, owner: str) -> None:
    ann, bob = await team.hire("ann"), await team.hire("bob")
    rref = ann.rrefs.remote(owner, things.Counter, (-3,), {"seconds": 0.1})
    stream = rref.rpc_stream(timeout=5).count(0)  # while the value is being made
    assert [item async for item in stream] == [-2, -1, 0]
    assert await rref.rpc_async().add() == 1
    items = [item async for item in rref.rpc_stream().pieces(n=3)]
    assert [float(item.sum()) for item in items] == [0, 1_000, 2_000]
    await rref.rpc_async().add(-10)
    failing = rref.rpc_stream().pieces(1)
    assert len(await anext(failing)) == 1_000
    with pytest.raises(ValueError, match="nothing after that"):
        await anext(failing)
    del rref, stream, failing, items
    await team.clean()
    assert len(bob.rrefs.table) == 0


async def test_a_generator_keeps_its_value(team: Team) -> None:
    """Also when nobody refers to it any more; leaving the loop ends it."""
    ann, bob = await team.hire("ann"), await team.hire("bob")
    async with ann.rrefs.remote("bob", things.Counter).rpc_stream().count(10**9) as stream:
        assert await anext(stream) == 1
        await team.clean()
        assert [await anext(stream) for _ in range(300)] == list(range(2, 302))
        assert bob.worker.service.executor.running == 1
    await until(lambda: bob.worker.service.executor.running == 0)


async def test_what_is_no_generator_is_no_stream(team: Team) -> None:
    ann, _ = await team.hire("ann"), await team.hire("bob")
    rref = ann.rrefs.remote("bob", things.Counter)
    with pytest.raises(ArgumentError, match=r"Counter\.count is a generator: .*rref\.rpc_stream\(\)"):
        await rref.rpc_async().count(3)
    with pytest.raises(ArgumentError, match=r"is a generator"):
        await rref.remote().count(3).to_here()
    with pytest.raises(ArgumentError, match="no generator"):
        await anext(rref.rpc_stream().add())
    with pytest.raises(NotRegistered, match="near it: count"):
        await anext(rref.rpc_stream().cont())
    with pytest.raises(AttributeError, match="public"):
        rref.rpc_stream()._private()
    with pytest.raises(ArgumentError, match="timeout"):
        rref.rpc_stream(timeout=-1).count(1)


async def test_here_too(team: Team) -> None:
    """A member may be its own owner: values are not copied, arguments and results of calls are."""
    ann = await team.hire("ann")
    rref = ann.rrefs.remote("ann", things.Counter, (1,))
    assert rref.is_owner()
    assert await rref.rpc_async().add() == 2
    assert rref.local_value().value == 2
    assert (await rref.to_here()) is rref.local_value()
    assert await ann.rpc("ann", things.give_back, [rref]) != [rref]
    assert await rref.rpc_async().total([rref]) == 4
    bad = ann.rrefs.remote("ann", things.Counter, (1,), {"fail": True})
    for _ in range(2):
        with pytest.raises(ValueError, match="no counter"):
            await bad.to_here()
    assert "failed: ValueError: no counter" in repr(bad)
    del rref, bad
    await team.clean()


async def test_a_failed_creation_is_sticky_everywhere(team: Team) -> None:
    ann, bob = await team.hire("ann"), await team.hire("bob")
    bad = ann.rrefs.remote("bob", things.Counter, (7,), {"fail": True})
    early = ann.rpc("bob", things.use, [bad])  # passed on before anybody knew
    for _ in range(2):
        with pytest.raises(RemoteError, match="no counter starts at 7") as caught:
            await bad.to_here()
        assert caught.value.type_name == "ValueError"
    with pytest.raises(ValueError, match="no counter"):
        await early
    with pytest.raises(ValueError, match="no counter"):
        await bad.confirmed_by_owner()
    with pytest.raises(ValueError, match="no counter"):
        bad.rpc_async().add()
    with pytest.raises(ValueError, match="no counter"):
        ann.rpc("bob", things.use, [bad])
    assert "failed" in repr(bad)
    del bad, early, caught
    await team.clean()
    assert len(bob.rrefs.table) == 0


async def test_nothing_of_that_name(team: Team) -> None:
    ann, _ = await team.hire("ann"), await team.hire("bob")
    rref = ann.rrefs.remote("bob", "rref_things.Contre")
    for _ in range(2):
        with pytest.raises(NotRegistered, match=r"near it: rref_things\.Counter"):
            await rref.to_here()


# pytorch#33803, #39411
async def test_timeouts(team: Team) -> None:
    ann, bob = await team.hire("ann"), await team.hire("bob")
    late = ann.rrefs.remote("bob", things.slow, timeout=0.2)
    slow = ann.rrefs.remote("bob", things.slow)
    with pytest.raises(DeadlineExceeded):
        await slow.to_here(timeout=0.2)
    for _ in range(2):  # sticky
        with pytest.raises(DeadlineExceeded):
            await late.to_here()
    with pytest.raises(DeadlineExceeded):  # that one was not
        await slow.to_here(timeout=0.05)
    assert await ann.rpc("bob", things.use, []) == []  # bob lives
    await until(lambda: [info.failed for info in bob.rrefs.list()] == [True, False])


# pytorch#67626
async def test_a_slow_constructor_blocks_nobody(team: Team) -> None:
    ann, _ = await team.hire("ann"), await team.hire("bob")
    loop = asyncio.get_running_loop()
    begin = loop.time()
    rref = ann.rrefs.remote("bob", things.Counter, (1,), {"seconds": 3.0})
    calls = [rref.rpc_async().add() for _ in range(3)]
    child = ann.rpc("bob", things.give_back, rref)
    assert loop.time() - begin < 0.5
    assert await ann.rpc("bob", things.use, []) == []
    assert loop.time() - begin < 2.0
    assert await asyncio.gather(*calls) == [2, 3, 4]
    assert loop.time() - begin >= 3.0
    assert (await child).id == rref.id


async def test_closed_handles(team: Team) -> None:
    ann, bob = await team.hire("ann"), await team.hire("bob")
    async with ann.rrefs.remote("bob", things.Counter) as rref:
        assert await rref.rpc_async().add() == 1
    rref.close()
    assert "closed" in repr(rref)
    with pytest.raises(ContextClosed):
        await rref.to_here()
    with pytest.raises(ContextClosed):
        ann.rpc("bob", things.use, [rref])
    await team.clean()
    assert len(bob.rrefs.table) == 0


async def test_copies_of_the_handle_are_the_handle(team: Team) -> None:
    ann = await team.hire("ann")
    rref = ann.rrefs.rref(1)
    assert copy.copy(rref) is copy.deepcopy(rref) is rref
    with pytest.raises(TypeError, match="pickled"):
        pickle.dumps(rref)


# pytorch#27096
async def test_cycles(team: Team) -> None:
    class Node:
        other: Any
        rref: Any

    ann, bob = await team.hire("ann"), await team.hire("bob")
    a, b = Node(), Node()
    a.other, b.other = b, a
    a.rref = ann.rrefs.remote("bob", things.Counter)
    await a.rref.confirmed_by_owner()
    gone = weakref.ref(a)
    del a, b
    gc.collect()
    assert gone() is None
    await until(lambda: len(bob.rrefs.table) == 0)


async def test_calls_are_made_on_the_loop(team: Team) -> None:
    ann, _ = await team.hire("ann"), await team.hire("bob")
    rref = ann.rrefs.remote("bob", things.Counter)
    await rref.confirmed_by_owner()

    def use(what: Callable[[], object]) -> None:
        with pytest.raises(ArgumentError, match="async def"):
            what()

    for what in (
        lambda: rref.rpc_async().add(),
        lambda: rref.remote().twin(),
        lambda: ann.rrefs.rref(1),
        lambda: ann.rrefs.remote("bob", things.Counter),
        lambda: ann.rpc("bob", things.use, [rref]),
    ):
        await asyncio.to_thread(use, what)
    await asyncio.to_thread(rref.close)
    await team.clean()


async def test_other_loops_are_refused(team: Team) -> None:
    """What is awaited there would never be woken."""
    ann, _ = await team.hire("ann"), await team.hire("bob")
    for rref in (ann.rrefs.remote("bob", things.Counter), ann.rrefs.rref(1)):
        await rref.confirmed_by_owner()
        for what in (rref.to_here, rref.confirmed_by_owner):
            with pytest.raises(ArgumentError, match="event loop"):
                await asyncio.wait_for(asyncio.to_thread(asyncio.run, what()), 5)


async def test_dropped_in_another_thread(team: Team) -> None:
    ann, bob = await team.hire("ann"), await team.hire("bob")
    box = [ann.rrefs.remote("bob", things.Counter) for _ in range(100)]
    await asyncio.gather(*(rref.confirmed_by_owner() for rref in box))
    thread = threading.Thread(target=box.clear)
    thread.start()
    await until(lambda: len(bob.rrefs.table) == 0)
    thread.join()
    await team.clean()


@pytest.mark.parametrize("owner", ["ann", "bob"])
async def test_dropped_while_it_is_made(team: Team, owner: str) -> None:
    ann, bob = await team.hire("ann"), await team.hire("bob")
    rref = ann.rrefs.remote(owner, things.Counter, (3,), {"seconds": 0.2})
    del rref
    await until(lambda: things.made == [3])
    await team.clean()
    assert len(bob.rrefs.table) == 0


async def test_a_call_keeps_its_value(team: Team) -> None:
    ann, _ = await team.hire("ann"), await team.hire("bob")
    rref = ann.rrefs.remote("bob", things.Counter, (1,), {"seconds": 0.3})
    call, copied = rref.rpc_async().add(), asyncio.ensure_future(rref.remote().twin().to_here())
    del rref
    gc.collect()
    assert await call == 2
    with pytest.raises(ArgumentError, match="Counter can't travel"):
        await copied
    del copied  # its traceback knows the reference
    await team.clean()


# pytorch#27928, #31325
async def test_a_handle_in_a_module_global(team: Team, caplog: pytest.LogCaptureFixture) -> None:
    global holder
    ann, bob = await team.hire("ann"), await team.hire("bob")
    holder = ann.rrefs.remote("bob", things.Counter)
    assert await ann.rrefs.close(timeout=5) == []
    assert len(bob.rrefs.table) == 0
    with pytest.raises(ContextClosed):
        await holder.to_here()
    with pytest.raises(ContextClosed):
        ann.rrefs.rref(1)
    holder = None


async def test_a_lost_owner(team: Team) -> None:
    ann, _ = await team.hire("ann"), await team.hire("bob")
    rref = ann.rrefs.remote("bob", things.Counter)
    await rref.confirmed_by_owner()
    pending = rref.rpc_async().add()
    waiting = asyncio.ensure_future(ann.rrefs.remote("bob", things.slow).to_here())
    await asyncio.sleep(0)
    team.bury("bob", "lease")
    for use in (rref.to_here(), rref.confirmed_by_owner(), waiting):
        with pytest.raises(PeerLost, match="bob"):
            await use
    with pytest.raises(PeerLost):
        rref.rpc_async().add()
    with pytest.raises(PeerLost):
        ann.rrefs.remote("bob", things.Counter)
    await asyncio.wait([pending])
    assert isinstance(pending.exception(), PeerLost)
    del rref, waiting
    await team.clean("ann")
