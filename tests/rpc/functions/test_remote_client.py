"""`rpc_async` and its like between real members: results, errors, deadlines, cancellation, lost peers."""

import asyncio
import contextlib
import gc
import signal
import sys
import threading
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import called
import numpy as np
import psutil
import pytest
from crew import Crew, until

from psframework.errors import (
    ArgumentError,
    DeadlineExceeded,
    NotRegistered,
    PeerLost,
    PermissionDenied,
    RemoteError,
    ResourceExhausted,
)
from psframework.rpc.call import PeerInfo
from psframework.rpc.deadline import Deadline
from psframework.rpc.functions.execute import ExecuteOptions
from psframework.rpc.functions.remote_client import Remote
from psframework.rpc.functions.routes import Address
from psframework.rpc.limits import AgentOptions
from psframework.testing.faults import FaultyLink
from psframework.testing.workers import Worker, worker
from psframework.wire.lanes import parse

SUPPORT = Path(__file__).parent.parent / "support"
LANES = ["inline", "inline,striped", "inline,striped,shm"]


async def test_functions_of_every_kind(pair: tuple[Remote, Worker]) -> None:
    remote, _ = pair
    for to in ("bob", "ann"):  # another member, and itself
        assert await remote.rpc_async(to, called.add, args=(1, 2)) == 3
        assert await remote.rpc_async(to, "called.add", args=(1,), kwargs={"y": 5}) == 6
        assert await remote.rpc_async(to, called.add_async, args=("a", "b")) == "ab"
        assert await remote.rpc_async(to, called.Point.origin) == 0
        assert await remote.rpc_async(to, called.Point.name) == "Point"
        assert await remote.rpc_async(to, called.echo, args=([1, {"k": (2.5, None)}, {3}],)) == [
            1,
            {"k": (2.5, None)},
            {3},
        ]


async def test_a_member_or_an_owner_may_be_passed_for_a_name(pair: tuple[Remote, Worker]) -> None:
    remote, bob = pair

    class Owned:
        def owner_name(self) -> str:
            return "bob"

    assert await remote.rpc_async(bob.agent.identity, called.add, (1, 2)) == 3
    assert await remote.rpc_async(Owned(), called.add, (1, 2)) == 3
    with pytest.raises(ArgumentError, match="is no member"):
        remote.rpc_async(3, called.add)
    other_life = PeerInfo("bob", "worker", "", 999)
    with pytest.raises(PeerLost, match="another one lives") as lost:
        await remote.rpc_async(other_life, called.add, (1, 2))
    assert lost.value.reason == "incarnation" and called.ran == [(1, 2), (1, 2)]


async def test_what_can_not_be_called(pair: tuple[Remote, Worker]) -> None:
    remote, _ = pair
    with pytest.raises(NotRegistered, match=r"@psf\.remote"):
        remote.rpc_async("bob", until)
    with pytest.raises(NotRegistered, match=r"^bob: nothing is registered here as .*called\.add"):
        await remote.rpc_async("bob", "called.ad")
    with pytest.raises(NotRegistered, match="RRef"):
        await remote.rpc_async("bob", "called.Point.move")
    with pytest.raises(TypeError, match=r"args\[0\]"):
        remote.rpc_async("bob", called.add, args=([object()],))
    with pytest.raises(ArgumentError, match="rpc_stream"):
        await remote.rpc_async("bob", called.count, (3,))
    with pytest.raises(PeerLost, match="no member carl"):
        await remote.rpc_async("carl", called.add, (1, 2))
    for timeout in (-1, "5", float("nan"), float("inf")):
        with pytest.raises(ArgumentError, match="timeout"):
            remote.rpc_async("bob", called.add, (1, 2), timeout=timeout)
    for args in (5, "ab", None, {"x": 1}):
        with pytest.raises(TypeError, match=r"pass a tuple, as in args=\(x,\)"):
            remote.rpc_async("bob", called.add, args)
    with pytest.raises(TypeError, match=r"kwargs=.*names"):
        remote.rpc_async("bob", called.add, (), {1: 2})
    with pytest.raises(ArgumentError, match=r"metadata=.*dict of str to str"):
        remote.rpc_async("bob", called.add, (1, 2), metadata={"a": 1})
    assert not remote.outstanding()


async def test_results_that_can_not_travel_are_type_errors(pair: tuple[Remote, Worker]) -> None:
    remote, _ = pair
    for to in ("bob", "ann"):
        with pytest.raises(TypeError, match=r"the result\['lock'\]\[0\]: _thread.lock can't travel"):
            await remote.rpc_async(to, called.unsendable)


async def test_calls_before_the_first_await_run_together_and_in_order(crew: Crew) -> None:
    ann, _ = await crew.hire("ann"), await crew.hire("bob")
    futures = [ann.remote.rpc_async("bob", called.add, (index,)) for index in range(100)]
    assert await asyncio.gather(*futures) == list(range(100))
    held = [ann.remote.rpc_async("bob", called.hold, (index, 0.0)) for index in range(100)]
    called.ran.clear()
    assert await asyncio.gather(*held) == list(range(100))
    assert called.ran == list(range(100))


@pytest.mark.parametrize("lanes", LANES)
async def test_arguments_may_change_at_once(crew: Crew, lanes: str) -> None:
    options = AgentOptions(lanes=parse(lanes))
    ann, _ = await crew.hire("ann", options=options), await crew.hire("bob", options=options)
    array, listed = np.arange(500_000.0), [1, 2]
    futures = []
    for _ in range(3):  # before there is a session, and with one
        future = ann.remote.rpc_async("bob", called.echo, ([array, listed],))
        array[:] = -1
        listed.append(3)
        futures.append(future)
        array[:] = np.arange(500_000.0)
        del listed[2:]
    array[:] = -1
    await futures[0]
    for future in [*futures, ann.remote.rpc_async("ann", called.echo, ([np.arange(500_000.0), [1, 2]],))]:
        back, numbers = await future
        assert numbers == [1, 2]
        np.testing.assert_array_equal(back, np.arange(500_000.0))


@pytest.mark.parametrize("lanes", LANES)
async def test_every_dtype_and_layout_arrives_equal(crew: Crew, lanes: str) -> None:
    import ml_dtypes

    options = AgentOptions(lanes=parse(lanes))
    ann, _ = await crew.hire("ann", options=options), await crew.hire("bob", options=options)
    names = (
        "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64 complex64 complex128"
    )
    dtypes = [*map(np.dtype, names.split()), np.dtype(ml_dtypes.bfloat16)]
    base = np.arange(60_000).reshape(200, 300)
    sent: list[Any] = []
    for dtype in dtypes:
        array = base.astype(dtype)
        sent += [
            array,
            array[::3, ::-2],
            np.asfortranarray(array),
            array[3, 4],
            array[:0],
            np.array(array[1, 1]),
        ]
    sent += [base.astype(">i4"), base.astype(">f8")[::2], np.zeros((3, 0, 2)), np.zeros((100, 9))[:60]]
    back = await ann.remote.rpc_async("bob", called.echo, (sent,))
    for mine, other in zip(sent, back, strict=True):
        assert other.dtype == mine.dtype.newbyteorder("=") and other.shape == mine.shape
        np.testing.assert_array_equal(np.asarray(other), np.asarray(mine))


@pytest.mark.parametrize("function", [called.fail, called.fail_async])
@pytest.mark.parametrize(
    ("kind", "name", "base", "text"),
    [
        ("two", "called.Two", RemoteError, "1 and 2"),
        ("value", "ValueError", ValueError, "bad value"),
        ("key", "KeyError", KeyError, "no key"),
        ("unicode", "UnicodeDecodeError", ValueError, "bad byte"),
        ("stop", "RuntimeError|StopIteration", RemoteError, "StopIteration|3"),
        ("exit", "SystemExit", RemoteError, "3"),
        ("interrupt", "KeyboardInterrupt", RemoteError, "stop"),
        ("generator", "RuntimeError|GeneratorExit", RemoteError, "end"),
        ("cancel", "asyncio.exceptions.CancelledError", RemoteError, "by itself"),
        ("timeout", "TimeoutError", TimeoutError, "too late"),
        ("group", "ExceptionGroup", RemoteError, "2 sub-exceptions"),
        ("local", "called.Local", ValueError, "__str__ failed"),
    ],
)
async def test_exceptions_of_every_kind(
    pair: tuple[Remote, Worker], function: Any, kind: str, name: str, base: type[Exception], text: str
) -> None:
    remote, _ = pair
    for to in ("bob", "ann"):
        with pytest.raises(base) as caught:
            await remote.rpc_async(to, function, (kind,))
        error = caught.value
        assert isinstance(error, RemoteError)
        assert error.type_name in name.split("|")
        assert any(part in error.message for part in text.split("|"))
        assert "in fail" in error.remote_traceback and "execute.py" not in error.remote_traceback
        assert await remote.rpc_async(to, called.add, (1, 2)) == 3  # the service lives


async def test_a_function_knows_who_calls(pair: tuple[Remote, Worker]) -> None:
    remote, _ = pair
    for function in (called.who, called.who_async):
        wanted = ("ann", "worker", {"trace": "abc"})
        assert await remote.rpc_async("bob", function, metadata={"trace": "abc"}) == wanted
        assert await remote.rpc_async("ann", function) == ("ann", "worker", {})


async def test_roles_are_checked(crew: Crew) -> None:
    ann, boss = await crew.hire("ann"), await crew.hire("carl", role="boss")
    bob = await crew.hire("bob")
    assert await boss.remote.rpc_async("bob", called.only_boss) == "yes"
    for to in ("bob", "ann"):
        with pytest.raises(PermissionDenied, match="boss"):
            await ann.remote.rpc_async(to, called.only_boss)
    assert bob.service.executor.stats["called.only_boss"].refused == 1


async def test_many_members_at_once(crew: Crew) -> None:
    workers = [await crew.hire(name) for name in ("ann", "bob", "carl")]
    remote = workers[0].remote
    names = [each.name for each in workers]
    assert await remote.rpc_all(names, called.add, (1, 2)) == [3, 3, 3]
    assert await remote.rpc_all([], called.add, (1, 2)) == []
    with pytest.raises(ValueError, match="bad value") as caught:
        await remote.rpc_all(names, called.fail, ("value",))
    assert (
        "bob failed too: RemoteValueError" in caught.value.__notes__[0] and len(caught.value.__notes__) == 2
    )
    results = await remote.rpc_all([*names, "nobody"], called.add, (1, 2), return_exceptions=True)
    assert results[:3] == [3, 3, 3] and isinstance(results[3], PeerLost)
    together = remote.rpc_all(names, called.hold)
    await until(lambda: len(called.ran) > 5 and called.ran.count(None) == 3)
    together.cancel()
    await until(lambda: len(called.cancelled) == 3)


async def test_many_members_are_checked_before_one_is_called(pair: tuple[Remote, Worker]) -> None:
    remote, _ = pair
    called.ran.clear()
    with pytest.raises(ArgumentError, match="several members"):
        remote.rpc_all("bob", called.add, (1, 2))
    with pytest.raises(ArgumentError, match="no member"):
        remote.rpc_all(["bob", 5], called.add, (1, 2))
    assert not remote.outstanding()


async def test_a_future_can_be_awaited_again_and_cancelled(pair: tuple[Remote, Worker]) -> None:
    remote, bob = pair
    future = remote.rpc_async("bob", called.add, (1, 2))
    assert not future.done()
    assert [await future, await future, future.result()] == [3, 3, 3] and future.done()
    future = remote.rpc_async("bob", called.hold, ("x",))
    await until(lambda: "x" in called.ran)
    assert future.cancel() and not future.cancel()
    await until(lambda: called.cancelled == ["x"])
    await until(lambda: bob.service.executor.running == 0 and not remote.outstanding())
    waiting = asyncio.create_task(awaiting(remote.rpc_async("bob", called.hold, ("y",))))
    await until(lambda: "y" in called.ran)
    waiting.cancel()
    await until(lambda: called.cancelled == ["x", "y"])
    assert bob.service.executor.stats["called.hold"].cancelled == 2


async def awaiting(future: asyncio.Future[Any]) -> Any:
    return await future


async def test_cancelling_at_each_await(pair: tuple[Remote, Worker]) -> None:
    """Whenever a caller is cancelled, nothing of its call is left."""
    remote, bob = pair
    big = np.zeros(300_000)
    for turns in range(40):
        task = asyncio.create_task(awaiting(remote.rpc_async("bob", called.echo_async, (big,))))
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait({task})
    await until(lambda: not remote.outstanding() and bob.service.executor.running == 0)
    await until(lambda: all(p.kept == 0 and p.statistics()["made"] == 0 for p in remote_peers(remote)))
    assert await remote.rpc_async("bob", called.add, (1, 2)) == 3


def remote_peers(remote: Remote) -> Any:
    return remote.routes._agent.peers


async def test_a_queued_sync_call_that_is_cancelled_never_runs(crew: Crew) -> None:
    ann, bob = await crew.hire("ann"), await crew.hire("bob", limits=ExecuteOptions(threads=1))
    first = ann.remote.rpc_async("bob", called.wait_for_gate, ("first",))
    await until(lambda: called.ran == ["first"])
    second = ann.remote.rpc_async("bob", called.wait_for_gate, ("second",))
    third = ann.remote.rpc_async("bob", called.wait_for_gate, ("third",), timeout=0.1)
    await ann.remote.rpc_async("bob", called.add_async, (1,))
    second.cancel()
    with pytest.raises(DeadlineExceeded):
        await third
    await until(lambda: bob.service.executor.running == 1)
    called.gate.set()
    assert await first == "first"
    assert await ann.remote.rpc_async("bob", called.wait_for_gate, ("last",)) == "last"
    assert called.ran == ["first", "last"]


async def test_deadlines(pair: tuple[Remote, Worker]) -> None:
    remote, _ = pair
    for to in ("bob", "ann"):
        with pytest.raises(DeadlineExceeded, match=rf"{to} did not finish called\.hold .*timeout="):
            await remote.rpc_async(to, called.hold, (to,), timeout=0.1)
        await until(lambda to=to: to in called.cancelled)  # type: ignore[misc]
    default, none = await asyncio.gather(
        remote.rpc_async("bob", called.time_left, ([],)),
        remote.rpc_async("bob", called.time_left, ([],), timeout=0),
    )
    assert 50 < default[0] <= 60 and none == [float("inf")]


async def test_nested_calls_inherit_what_is_left(crew: Crew) -> None:
    ann = await crew.hire("ann")
    await crew.hire("bob")
    await crew.hire("carl")
    lefts = await ann.remote.rpc_async("bob", called.time_left, (["carl", "ann"],), timeout=5)
    assert len(lefts) == 3 and 5 >= lefts[0] >= lefts[1] >= lefts[2] > 0
    lefts = await ann.remote.rpc_async("bob", called.time_left, (["carl"],), timeout=0)
    assert lefts[0] == float("inf") and 50 < lefts[1] <= 60


async def test_a_task_that_outlives_the_function_outlives_its_deadline_too(crew: Crew) -> None:
    ann = await crew.hire("ann")
    await crew.hire("bob")
    called.left_behind.clear()
    deadline = Deadline.after(0.5)
    for to in ("bob", "ann"):
        await ann.remote.rpc_async(to, called.leave_a_task, ("ann",), timeout=deadline.remaining())
    await until(lambda: deadline.expired)
    called.gate.set()
    assert await asyncio.gather(*called.left_behind) == [3, 3]


async def test_nesting_to_depth_64_needs_one_thread_a_side(crew: Crew) -> None:
    one = ExecuteOptions(threads=1)
    ann, _ = await crew.hire("ann", limits=one), await crew.hire("bob", limits=one)
    path = ["bob", "ann"] * 32
    assert await ann.remote.rpc_async("bob", called.ping_pong, (path[1:],)) == 63
    assert (
        await asyncio.gather(*(ann.remote.rpc_async("bob", called.ping_pong, (path[1:],)) for _ in range(5)))
        == [63] * 5
    )


@pytest.mark.parametrize("lanes", LANES)
async def test_nested_calls_need_no_room_for_what_those_before_them_brought(crew: Crew, lanes: str) -> None:
    """Each of them waits for the next, so together they bring far more than the window."""
    options = AgentOptions(lanes=parse(lanes), window_bytes=256 * 1024)
    ann, _ = await crew.hire("ann", options=options), await crew.hire("bob", options=options)
    path, load = ["bob", "ann"] * 16, bytes(100_000)
    calls = [ann.remote.rpc_async("bob", called.ping_pong, (path[1:], load), timeout=10) for _ in range(4)]
    assert await asyncio.gather(*calls) == [31] * 4


async def test_functions_that_hold_all_threads_hold_up_no_results(crew: Crew) -> None:
    """Copies of large ones for the striped lane are made elsewhere: perhaps the functions wait for them."""
    options = AgentOptions(lanes=parse("inline,striped"))
    ann = await crew.hire("ann", options=options)
    await crew.hire("bob", options=options, limits=ExecuteOptions(threads=1))
    held = ann.remote.rpc_async("bob", called.wait_for_gate)
    await until(lambda: len(called.ran) == 1)
    load = bytes(2 << 20)
    try:
        assert await ann.remote.rpc_async("bob", called.echo_async, (load,), timeout=10) == load
    finally:
        called.gate.set()
    await held


async def test_whoever_takes_no_connections_is_called_over_the_one_it_opened(crew: Crew) -> None:
    hub, notebook = await crew.hire("hub"), await crew.hire("notebook", listens=False)
    with pytest.raises(PeerLost, match="no address"):
        await hub.remote.rpc_async("notebook", called.who)
    assert await notebook.remote.rpc_async("hub", called.add, (1, 2)) == 3
    assert await hub.remote.rpc_async("notebook", called.who) == ("hub", "worker", {})


async def test_admission_is_bounded(crew: Crew) -> None:
    ann = await crew.hire("ann")
    bob = await crew.hire("bob", limits=ExecuteOptions(threads=1, max_calls=10))
    held = [ann.remote.rpc_async("bob", called.wait_for_gate, (index,)) for index in range(10)]
    with pytest.raises(ResourceExhausted, match="try again") as full:
        await ann.remote.rpc_async("bob", called.echo_async, (1,))
    assert 0 < full.value.retry_after <= 5
    assert bob.service.executor.stats["called.echo_async"].refused == 1
    called.gate.set()
    assert await asyncio.gather(*held) == list(range(10))
    assert await ann.remote.rpc_async("bob", called.echo_async, (1,)) == 1


@pytest.mark.parametrize("big", [np.zeros(100_000), [0.5] * 100_000], ids=["array", "list"])
async def test_arguments_are_admitted_by_their_size(crew: Crew, big: Any) -> None:
    ann = await crew.hire("ann")
    await crew.hire("bob", limits=ExecuteOptions(max_bytes=1 << 20))
    first = ann.remote.rpc_async("bob", called.hold, (big, 60.0))
    await until(lambda: len(called.ran) == 1)
    with pytest.raises(ResourceExhausted, match="bytes"):
        await ann.remote.rpc_async("bob", called.echo, (big,))
    first.cancel()


async def test_a_killed_member_fails_its_calls_soon(crew: Crew) -> None:
    ann, process = await crew.hire("ann"), await crew.process("bob")
    assert await ann.remote.rpc_async("bob", called.process_id) == process.pid
    futures = [ann.remote.rpc_async("bob", called.hold, (index,)) for index in range(20)]
    futures += [ann.remote.rpc_async("bob", called.wait_for_gate) for _ in range(20)]
    await ann.remote.rpc_async("bob", called.add_async, (1,))
    process.kill()
    async with asyncio.timeout(10):
        results = await asyncio.gather(*futures, return_exceptions=True)
    assert all(isinstance(r, PeerLost) and r.peer == "bob" and r.may_have_run for r in results)
    assert not ann.remote.outstanding()
    del crew.book.known["bob"]
    with pytest.raises(PeerLost):
        await ann.remote.rpc_async("bob", called.process_id)


async def test_a_stopped_member_fails_by_deadline_or_lease_and_then_goes_on(crew: Crew) -> None:
    ann, process = await crew.hire("ann"), await crew.process("bob")
    await ann.remote.rpc_async("bob", called.process_id)
    process.send_signal(signal.SIGSTOP)
    with pytest.raises(DeadlineExceeded):
        await ann.remote.rpc_async("bob", called.process_id, timeout=0.2)
    late = ann.remote.rpc_async("bob", called.process_id, timeout=0)
    process.send_signal(signal.SIGCONT)
    assert await late == process.pid
    process.send_signal(signal.SIGSTOP)
    pending = ann.remote.rpc_async("bob", called.process_id, timeout=0)
    await asyncio.sleep(0)
    ann.agent.lost("bob", crew.book.known["bob"].incarnation, "lease")
    with pytest.raises(PeerLost) as lost:
        await pending
    assert lost.value.reason == "lease"


async def test_a_broken_connection_is_resumed_and_no_call_fails(crew: Crew) -> None:
    ann, bob = await crew.hire("ann"), await crew.hire("bob")
    async with FaultyLink(bob.address) as link:
        crew.book.known["bob"] = Address([link.address], "worker", bob.agent.identity.incarnation)
        await ann.remote.rpc_async("bob", called.add, (0,))
        called.ran.clear()
        futures = []
        for index in range(200):
            futures.append(ann.remote.rpc_async("bob", called.add, (index,)))
            if index % 50 == 25:
                link.cut()
            await asyncio.sleep(0.001)
        assert await asyncio.gather(*futures) == list(range(200))
        assert sorted(x for x, _ in called.ran) == list(range(200))  # each ran once


async def test_an_idempotent_call_is_sent_again_to_the_same_life(crew: Crew) -> None:
    ann, bob = await crew.hire("ann"), await crew.hire("bob")
    big = np.arange(50_000)
    await ann.remote.rpc_async("bob", called.again, (0,))
    peer = ann.agent.peer_for("bob")
    assert peer is not None
    futures = [ann.remote.rpc_async("bob", called.again, (key,)) for key in ("a", "b")]
    once = ann.remote.rpc_async("bob", called.hold, ("not idempotent",))
    await until(lambda: "not idempotent" in called.ran)
    peer.fail("closed", "cut for good")
    assert [await future for future in futures] in ([1, 1], [2, 2], [1, 2], [2, 1])
    with pytest.raises(PeerLost) as lost:
        await once
    assert lost.value.may_have_run
    assert await ann.remote.rpc_async("bob", called.add, (big, 1)) is not None
    peer = ann.agent.peer_for("bob")
    assert peer is not None
    crew.book.known["bob"] = crew.book.known["bob"]._replace(incarnation=12345)  # another life began
    future = ann.remote.rpc_async("bob", called.again, ("c",))
    peer.fail("closed", "cut for good")
    with pytest.raises(PeerLost):
        await future
    assert bob.agent.identity.incarnation != 12345


async def test_an_end_with_calls_in_flight(crew: Crew) -> None:
    stack = AsyncExitStack()
    async with stack:
        zoe = await stack.enter_async_context(worker("zoe", crew.book))
        await crew.hire("bob")
        await zoe.remote.rpc_async("bob", called.add, (1, 2))
        futures = [zoe.remote.rpc_async(to, called.hold, (to,)) for to in ("bob", "zoe") for _ in range(50)]
        futures += [zoe.remote.rpc_async("bob", called.sleep, (0.01,)) for _ in range(50)]
        assert zoe.remote.outstanding() == {"bob": 100, "zoe": 50}
        await until(lambda: len(called.ran) >= 100)
    results = await asyncio.gather(*futures, return_exceptions=True)
    assert all(isinstance(result, PeerLost | float) for result in results)
    assert not zoe.remote.outstanding()
    with pytest.raises(PeerLost):
        await zoe.remote.rpc_async("bob", called.add, (1, 2))
    with pytest.raises(PeerLost):
        await zoe.remote.rpc_async("zoe", called.add, (1, 2))


@pytest.mark.parametrize("rounds", [10_000, pytest.param(100_000, marks=pytest.mark.soak)])
async def test_calls_leave_nothing_behind(pair: tuple[Remote, Worker], rounds: int) -> None:
    remote, bob = pair

    async def some(count: int) -> None:
        for start in range(0, count, 100):
            futures = [remote.rpc_async("bob", called.echo_async, (index,)) for index in range(100)]
            assert await asyncio.gather(*futures) == list(range(100)), start

    await some(1000)
    gc.collect()
    process = psutil.Process()
    objects, resident, files = len(gc.get_objects()), process.memory_info().rss, process.num_fds()
    await some(rounds)
    await until(lambda: bob.agent.peers[0].statistics()["kept"] == 0)
    gc.collect()
    # Timer wheels keep an empty set for each 10 ms of the last minute, so the bound is not 0.
    assert len(gc.get_objects()) - objects < (500 if rounds < 100_000 else 15_000)
    assert process.memory_info().rss - resident < 20 << 20
    assert process.num_fds() <= files
    assert not remote.outstanding() and bob.service.executor.running == 0


async def test_calls_make_no_cycles(pair: tuple[Remote, Worker]) -> None:
    remote, _ = pair
    await remote.rpc_async("bob", called.echo_async, (np.zeros(100_000),))
    gc.collect()
    gc.disable()
    try:
        for _ in range(50):
            await remote.rpc_async("bob", called.echo_async, (1,))
            with contextlib.suppress(ValueError):
                await remote.rpc_async("bob", called.fail_async, ("value",))
        await remote.rpc_async("bob", called.echo_async, (1,))
        assert gc.collect() < 20 * 50  # raised errors may hold their frames; calls hold nothing
    finally:
        gc.enable()


async def test_a_slow_sync_function_holds_nobody_up(pair: tuple[Remote, Worker]) -> None:
    remote, _ = pair
    slow = remote.rpc_async("bob", called.wait_for_gate)
    await until(lambda: called.ran)
    assert await asyncio.wait_for(remote.rpc_async("bob", called.add, (1, 2)), 5) == 3
    assert not slow.done() and threading.active_count() < 40
    called.gate.set()
    await slow


@pytest.mark.parametrize("timeout", [sys.maxsize, 1e300])
async def test_a_timeout_that_no_message_can_say(pair: tuple[Remote, Worker], timeout: float) -> None:
    remote, _ = pair
    for to in ("bob", "ann"):
        assert await remote.rpc_async(to, called.add, (1, 2), timeout=timeout) == 3
        assert [item async for item in remote.rpc_stream(to, called.count, (2,), timeout=timeout)] == [0, 1]
    await until(lambda: not remote.outstanding())


async def test_a_call_that_was_given_up_is_not_outstanding(pair: tuple[Remote, Worker]) -> None:
    """Its function swallows the cancellation, so it may never be answered."""
    remote, bob = pair
    with pytest.raises(DeadlineExceeded):
        await remote.rpc_async("bob", called.wait_for_gate, timeout=0.1)
    gone = remote.rpc_async("bob", called.deaf, timeout=0.2)
    with pytest.raises(DeadlineExceeded):
        await gone
    assert bob.service.executor.running and not remote.outstanding()
    called.gate.set()
