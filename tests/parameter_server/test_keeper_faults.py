"""The keeper of models where callers, disk or keeper give up half-way: nobody is waited for in vain."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import AsyncExitStack

import numpy as np
import pytest

from psframework import nn, optim
from psframework.errors import UnknownTable
from psframework.membership.coordinator import Coordinator
from psframework.membership.store import Change, MemoryStore, Write
from psframework.parameter_server.arena import parameter_specs
from psframework.parameter_server.client import open_parameter_server
from psframework.parameter_server.handle import ParameterServer
from psframework.parameter_server.keeper import Application, Keeper
from psframework.parameter_server.messages import encode_record
from psframework.parameter_server.policy import BSP, policy_spec
from psframework.parameter_server.registry import Applicant, ModelRecord, ModelSpec
from psframework.rpc.deadline import Deadline
from psframework.rpc.security.credentials import Security
from psframework.testing.servers import Servers, Trainer, servers


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(np.zeros((40, 10), np.float32))

    def fill(self, value: float) -> None:
        self.w.grad = np.full((40, 10), value, np.float32)

    def is_all(self, value: float) -> bool:
        return bool(np.all(self.w.data == value))


@pytest.fixture(scope="module")
async def made():
    async with servers(2) as running:
        yield running


_names = iter(range(10_000))


async def opened(runtime: Trainer, policy, name: str, **options) -> tuple[Net, ParameterServer]:
    model = Net()
    options = {"optimizer": optim.SGD(lr=1.0), "consistency": policy, "name": name} | options
    return model, await open_parameter_server(runtime, model, **options)


async def until(condition: Callable[[], object], seconds: float = 10.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - the keeper tells nobody
            await asyncio.sleep(0.005)


async def die(made: Servers, runtime: Trainer) -> None:
    """As if the process was killed: the coordinator fences it; its client says nothing any more."""
    await made.coordinator.leave(runtime.membership.member.incarnation)


def table(made: Servers, name: str):
    return made.keeper.models.find(f"default/{name}").current()


def _soon() -> Deadline:
    return Deadline.after(10)


def application(runtime: Trainer, name: str, token: str, **changes) -> Application:
    spec = ModelSpec(
        parameter_specs(list(Net().named_parameters())),
        json.dumps(optim.SGD(lr=1.0).rule.spec()),
        json.dumps(policy_spec(BSP())),
    )
    member = runtime.membership.member
    return Application("default", name, spec, Applicant(member.name, member.incarnation, token, **changes))


@pytest.fixture
def slow_disk(made: Servers, monkeypatch) -> tuple[asyncio.Event, asyncio.Event]:
    """The coordinator's store: (a change waits for it, it may go on)."""
    waits, goes_on, submit = asyncio.Event(), asyncio.Event(), made.coordinator.submit

    async def later(change: Change) -> None:
        waits.set()
        await goes_on.wait()
        await submit(change)

    monkeypatch.setattr(made.coordinator, "submit", lambda change: asyncio.ensure_future(later(change)))
    return waits, goes_on


async def given_up(call: asyncio.Future, waits: asyncio.Event) -> None:
    """The caller goes away while the change is being stored."""
    await waits.wait()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call


async def test_a_leave_that_is_given_up_while_it_is_stored_is_told_all_the_same(made: Servers, request):
    async with made.trainer() as one, made.trainer() as two:
        name = f"net-{next(_names)}"
        (m0, a), (_, b) = await asyncio.gather(
            opened(one, BSP(trainers=2), name), opened(two, BSP(trainers=2), name)
        )
        waits, goes_on = request.getfixturevalue("slow_disk")
        leaving = asyncio.ensure_future(made.keeper.leave(f"default/{name}", b._writer, 0, _soon()))
        await given_up(leaving, waits)
        goes_on.set()
        m0.fill(1.0)
        await a.push_pull(timeout=5)
        assert m0.is_all(-1.0)
        await a.close()


async def test_who_gives_up_registering_while_it_is_stored_is_not_waited_for(made: Servers, request):
    async with made.trainer() as one, made.trainer() as two:
        name = f"net-{next(_names)}"
        m0, a = await opened(one, BSP(), name)
        waits, goes_on = request.getfixturevalue("slow_disk")
        coming = asyncio.ensure_future(made.keeper.register(application(two, name, "second"), _soon()))
        await given_up(coming, waits)
        withdrawn = asyncio.ensure_future(made.keeper.withdraw(f"default/{name}", "second", _soon()))
        await asyncio.sleep(0)
        goes_on.set()
        await withdrawn
        m0.fill(1.0)
        await a.push_pull(timeout=5)
        assert len(table(made, name).registrations) == 1
        await a.close()


async def test_a_new_coordinator_goes_on_where_the_shards_never_heard_of_the_model():
    """The old one ended between storing the model and telling the shards; its initializer is dead."""
    store = MemoryStore()
    async with servers(1, store=store) as running, running.trainer() as one:
        shards = tuple(await running.keeper._shards(_soon()))
        wanted = application(one, "net", "mine")
        record = ModelRecord("default", "net", wanted.spec, '{"name": "balanced"}', False, shards, 1)
        dead = Applicant("dead", 999, "theirs")
        record = record.admit(7, dead, 0, BSP()).initialized_by(7)
        store.commit([Write("model/default/net", encode_record(record))])
        async with Coordinator(store) as second, Keeper(second, Security.plaintext()) as keeper:
            admitted = await keeper.register(wanted, Deadline.after(5))
            assert admitted.initialize


async def test_a_slot_that_is_vacant_again_waits_its_whole_time_again(made: Servers):
    name = f"net-{next(_names)}"
    policy = BSP(trainers=2, on_loss="wait", wait=30)
    async with AsyncExitStack() as stack:
        one, two = [await stack.enter_async_context(made.trainer(n)) for n in ("gamma", "delta")]
        (_, a), _ = await asyncio.gather(opened(one, policy, name), opened(two, policy, name))
        cell = made.keeper.models.find(f"default/{name}")
        await die(made, two)
        await until(lambda: cell.vacancies)
        first = cell.vacancies[0]
        again = await stack.enter_async_context(made.trainer("delta"))
        await opened(again, policy, name)
        await die(made, again)
        await until(lambda: len(cell.vacancies) == 2)
        await made.keeper._give_up(cell, first, 0)  # the first loss's time is over
        assert [e.name for e in cell.current().roster.open_entries()] == ["gamma", "delta"]
        await made.keeper._give_up(cell, cell.vacancies[0], 0)
        assert [e.name for e in cell.current().roster.open_entries()] == ["gamma"]
        await a.close()


async def test_asking_for_a_model_that_nobody_made_leaves_nothing_behind(made: Servers):
    async with made.trainer() as one:
        with pytest.raises(UnknownTable, match="is registered"):
            await made.keeper.register(application(one, "nobody", "r", reader=True), _soon())
    assert made.keeper.models.begun("default/nobody") is None
