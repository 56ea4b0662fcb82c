"""Messages with modules are read beside the loop: calls, results and streams, with what rides in them."""

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import called
import numpy as np
import pytest
from crew import Crew, until

from psframework import nn
from psframework.errors import PermissionDenied, PsfError, WireError
from psframework.proto.v1.remote_pb2 import Value
from psframework.rpc.functions import unpacking
from psframework.rpc.functions.unpacking import Unread, in_thread, value_of
from psframework.rpc.registry import remote
from psframework.rpc.security.allow import AllowList
from psframework.rpc.values import arguments
from psframework.rpc.values.journey import Journey

LOOP = threading.get_ident()
made: list[int] = []
gate = threading.Event()


@remote
class Slow(nn.Module):
    """One whose constructor takes as long as the test wants."""

    def __init__(self) -> None:
        made.append(threading.get_ident())
        assert gate.wait(10)
        self.w = nn.Parameter(np.zeros(3))


@remote(roles=("boss",))
class Guarded(nn.Module):
    """For few."""


@remote
def give(n: int) -> Iterator[Any]:
    yield from (nn.Linear(2, 3) for _ in range(n))


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    made.clear()
    gate.set()
    yield
    gate.set()


def test_what_has_no_modules_is_read_at_once() -> None:
    journey = Journey()
    assert value_of(arguments.encode([1, {"a": 2.5}], journey), [], journey) == [1, {"a": 2.5}]
    with pytest.raises(WireError):
        value_of(Value(outline=b"\xff"), [], journey)


async def test_a_reply_with_a_module_is_read_later() -> None:
    net, journey = nn.Linear(2, 3), Journey()
    found = value_of(
        arguments.encode([net], journey), [memoryview(part) for part in journey.parts], Journey()
    )
    assert type(found) is Unread
    (twin,) = await found.value()
    np.testing.assert_array_equal(twin.weight.data, net.weight.data)


async def test_a_thread_calls_on_the_loop() -> None:
    def fail() -> None:
        raise ValueError("no")

    assert await in_thread(lambda home: (home(threading.get_ident), threading.get_ident() != LOOP)) == (
        threading.get_ident(),
        True,
    )
    with pytest.raises(ValueError, match="no"):
        await in_thread(lambda home: home(fail))


async def test_a_thread_does_not_wait_for_a_loop_that_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unpacking, "LOOK_SECONDS", 0.01)
    loop = asyncio.new_event_loop()
    waiting = asyncio.get_running_loop().run_in_executor(None, unpacking._call_on, loop, threading.get_ident)
    await until(lambda: loop._ready)  # type: ignore[attr-defined]
    loop.close()
    with pytest.raises(PsfError, match="loop ended"):
        await asyncio.wait_for(waiting, 10)


async def test_the_loop_goes_on_while_a_constructor_runs(crew: Crew) -> None:
    ann, _ = await crew.hire("ann"), await crew.hire("bob")
    net = Slow()
    net.w.data += 1
    gate.clear()
    with_module = ann.remote.rpc_async("bob", called.echo_async, ([net],))
    await until(lambda: len(made) == 2)
    assert await ann.remote.rpc_async("bob", called.add_async, (1, 2)) == 3
    gate.set()
    (found,) = await with_module
    assert found.w.data.tolist() == [1, 1, 1]
    assert len(made) == 3 and threading.get_ident() not in made[1:]  # the argument's, and the result's


async def test_a_call_that_is_given_up_while_its_arguments_are_read(crew: Crew) -> None:
    ann, bob = await crew.hire("ann"), await crew.hire("bob")
    net = Slow()
    gate.clear()
    future = ann.remote.rpc_async("bob", called.add, (net,), timeout=30)
    await until(lambda: len(made) == 2)
    future.cancel()
    await until(lambda: bob.service.executor.running == 0)
    gate.set()
    assert await ann.remote.rpc_async("bob", called.echo, (nn.ReLU(),)) is not None  # the thread is free
    assert called.ran == []


async def test_streams_of_modules(crew: Crew) -> None:
    ann, _ = await crew.hire("ann"), await crew.hire("bob")
    found = [layer async for layer in ann.remote.rpc_stream("bob", give, (5,))]
    assert [type(layer) for layer in found] == [nn.Linear] * 5


async def test_an_error_while_modules_are_read_is_the_calls(crew: Crew) -> None:
    ann, _ = await crew.hire("ann"), await crew.hire("bob")
    gate.set()
    with pytest.raises(PermissionDenied, match="Guarded needs 'boss'"):
        await ann.remote.rpc_async("bob", called.echo, ([Guarded()],))
    assert await asyncio.wait_for(ann.remote.rpc_async("bob", called.echo, (3,)), 10) == 3


async def test_rules_hold_for_classes_that_a_message_names(crew: Crew) -> None:
    ann, bob = await crew.hire("ann"), await crew.hire("bob")
    bob.service.executor._rules = AllowList(["*:called.*", "*:psframework.nn.ReLU"])
    assert type(await ann.remote.rpc_async("bob", called.echo, (nn.ReLU(),))) is nn.ReLU
    for value in (nn.Linear(2, 3), {"deep": [nn.Sequential(nn.ReLU())]}, Slow()):
        with pytest.raises(PermissionDenied, match="no rule allows it"):
            await ann.remote.rpc_async("bob", called.echo, (value,))
    assert len(made) == 1
    assert bob.service.executor.stats["psframework.nn.Linear"].refused == 1
