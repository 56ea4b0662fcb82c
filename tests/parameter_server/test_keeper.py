"""The keeper of models: who counts from when, whoever joins, dies, comes back, or restarts."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import AsyncExitStack

import numpy as np
import pytest

from psframework import nn, optim
from psframework.errors import ArgumentError, DeadlineExceeded, Evicted, PsfError, UnknownTable
from psframework.membership.coordinator import Coordinator
from psframework.membership.store import MemoryStore
from psframework.parameter_server import handle
from psframework.parameter_server.arena import parameter_specs
from psframework.parameter_server.client import open_parameter_server
from psframework.parameter_server.handle import ParameterServer
from psframework.parameter_server.keeper import Application, Keeper, _natural
from psframework.parameter_server.policy import ASP, BSP, SSP, policy_spec
from psframework.parameter_server.registry import Applicant, ModelSpec
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


async def test_the_dead_block_nobody_and_their_complete_steps_count(made: Servers):
    async with made.trainer() as one, made.trainer() as two:
        name = f"net-{next(_names)}"
        (m0, a), (m1, b) = await asyncio.gather(
            opened(one, BSP(trainers=2), name), opened(two, BSP(trainers=2), name)
        )
        m1.fill(3.0)
        await b.push()  # complete on all shards, so it counts
        await die(made, two)
        m0.fill(1.0)
        await a.push_pull()
        assert m0.is_all(-2.0)
        m0.fill(1.0)
        await a.push_pull()
        assert m0.is_all(-3.0)
        with pytest.raises(PsfError):
            await b.pull(timeout=2)
        await a.close()


async def test_half_a_push_of_the_dead_does_not_count(made: Servers):
    async with made.trainer() as one, made.trainer() as two:
        name = f"net-{next(_names)}"
        (m0, a), (m1, b) = await asyncio.gather(
            opened(one, BSP(trainers=2), name), opened(two, BSP(trainers=2), name)
        )
        m1.fill(100.0)
        b._freeze(kept=False, compression=None)
        half = b._pending.gradients
        await b._links[0].push(half, 0, _soon())
        m0.fill(1.0)
        waiting = asyncio.ensure_future(a.push_pull())
        await die(made, two)
        await waiting
        assert m0.is_all(-1.0)
        with pytest.raises(Evicted):
            await b._links[1].push(half, 0, _soon())
        await a.close()


@pytest.mark.parametrize("policy", [ASP(), SSP(0), BSP()], ids=lambda p: p.name)
async def test_a_fenced_writer_is_refused(made: Servers, policy):
    async with made.trainer() as one, made.trainer() as two:
        name = f"net-{next(_names)}"
        m0, a = await opened(one, policy, name)
        m1, b = await opened(two, policy, name)
        await die(made, two)
        await until(lambda: len(table(made, name).registrations) == 1)
        m1.fill(1.0)
        b._freeze(kept=False, compression=None)
        for link in b._links:
            with pytest.raises(PsfError):
                await link.push(b._pending.gradients, 0, _soon())
        await a.pull()
        assert m0.is_all(0.0)
        await a.close()


async def test_who_died_while_it_registered_is_not_waited_for(made: Servers):
    async with made.trainer() as one, made.trainer() as two:
        name = f"net-{next(_names)}"
        spec = ModelSpec(
            parameter_specs(list(Net().named_parameters())),
            json.dumps(optim.SGD(lr=1.0).rule.spec()),
            json.dumps(policy_spec(BSP())),
        )

        def application(runtime: Trainer, token: str) -> Application:
            member = runtime.membership.member
            return Application("default", name, spec, Applicant(member.name, member.incarnation, token))

        first = await made.keeper.register(application(one, "first"), _soon())
        assert first.initialize
        waiting = asyncio.create_task(made.keeper.register(application(two, "second"), _soon()))
        await asyncio.sleep(0)  # it waits for the first values
        await die(made, two)
        await made.keeper.finish_initialization(f"default/{name}", first.writer, _soon())
        with pytest.raises(Evicted, match="is no member"):
            await waiting
        assert [entry.writer for entry in table(made, name).roster.open_entries()] == [first.writer]


async def test_a_rule_that_shards_cannot_run_is_refused_and_the_name_stays_free(made: Servers):
    """A foreign client does not ask our client first."""
    async with made.trainer() as one:
        name, member = f"net-{next(_names)}", one.membership.member
        specs = parameter_specs(list(Net().named_parameters()))
        rule, policy = json.dumps(optim.LAMB().rule.spec()), json.dumps(policy_spec(ASP()))
        applicant = Applicant(member.name, member.incarnation, "foreign")
        with pytest.raises(
            ArgumentError, match="lamb needs a whole parameter at once, but a parameter server"
        ):
            await made.keeper.register(
                Application("default", name, ModelSpec(specs, rule, policy), applicant), _soon()
            )
        _, ps = await opened(one, ASP(), name)
        await ps.close()


async def test_with_wait_a_slot_stands_until_its_trainer_is_back(made: Servers):
    name = f"net-{next(_names)}"
    policy = BSP(trainers=2, on_loss="wait", wait=30)
    async with AsyncExitStack() as stack:
        one = await stack.enter_async_context(made.trainer("alpha"))
        two = await stack.enter_async_context(made.trainer("beta"))
        (m0, a), (m1, b) = await asyncio.gather(opened(one, policy, name), opened(two, policy, name))
        slot = b.slot
        for model, ps in ((m0, a), (m1, b)):
            model.fill(1.0)
            await ps.push()
        await a.pull()
        await die(made, two)
        m0.fill(1.0)
        await a.push()
        with pytest.raises(DeadlineExceeded, match="waits for beta"):
            await a.pull(timeout=0.2)
        again = await stack.enter_async_context(made.trainer("beta"))
        m2, c = await opened(again, policy, name)
        assert (c.slot, c.step) == (slot, 1)
        assert m2.is_all(-1.0)
        m2.fill(3.0)
        await asyncio.gather(c.push_pull(), a.pull())
        assert m0.is_all(-3.0)
        assert m2.is_all(-3.0)
        await a.close()
        await c.close()


async def test_a_wait_ends_by_itself(made: Servers):
    name = f"net-{next(_names)}"
    policy = BSP(trainers=2, on_loss="wait", wait=0.2)
    async with made.trainer() as one, made.trainer() as two:
        (m0, a), _ = await asyncio.gather(opened(one, policy, name), opened(two, policy, name))
        await die(made, two)
        m0.fill(1.0)
        await a.push_pull(timeout=10)
        assert m0.is_all(-1.0)
        await a.close()


async def test_with_spares_the_late_are_dropped_and_catch_up(made: Servers):
    name = f"net-{next(_names)}"
    policy = BSP(trainers=3, spares=1)
    async with AsyncExitStack() as stack:
        runtimes = [await stack.enter_async_context(made.trainer()) for _ in range(3)]
        pairs = await asyncio.gather(*(opened(runtime, policy, name) for runtime in runtimes))
        (m0, a), (m1, b), (m2, late) = pairs
        for step in range(3):
            m0.fill(1.0)
            m1.fill(3.0)
            await asyncio.gather(a.push_pull(), b.push_pull())
            assert m0.is_all(-2.0 * (step + 1))
        m2.fill(1000.0)
        await late.push()
        assert late.stats().outcomes["dropped"] == 1
        assert late.step == 3
        await late.pull()
        assert m2.is_all(-6.0)
        m2.fill(5.0)
        m0.fill(1.0)
        await asyncio.gather(late.push_pull(), a.push_pull())
        assert m0.is_all(-9.0)
        for ps in (a, b, late):
            await ps.close()


async def test_trainers_join_while_others_run_and_every_step_has_one_set_of_contributors(made: Servers):
    name = f"net-{next(_names)}"
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(made.trainer())
        m0, a = await opened(first, BSP(), name)
        stop = asyncio.Event()

        async def run(model: Net, ps: ParameterServer) -> list[np.ndarray]:
            seen = []
            while not stop.is_set():
                model.fill(1.0)
                await ps.push_pull()
                seen.append(model.w.data.copy())
            await ps.leave()
            return seen

        runs = [asyncio.ensure_future(run(m0, a))]
        for _ in range(4):
            runtime = await stack.enter_async_context(made.trainer())
            model, ps = await opened(runtime, BSP(), name)
            runs.append(asyncio.ensure_future(run(model, ps)))
        stop.set()
        histories = await asyncio.gather(*runs)
        # all push ones, so whoever counts, each step moves by exactly one
        for history in histories:
            for values in history:
                assert np.all(values == values[0, 0])
        assert all(value[0, 0] == -(i + 1) for i, value in enumerate(histories[0]))


async def test_a_lost_shard_loses_the_model_and_a_new_one_can_be_made():
    async with servers(2) as running, running.trainer() as one:
        _, ps = await opened(one, ASP(), "net")
        shard = running.coordinator.view.select("parameter-server", None)[1]
        await running.coordinator.leave(shard.incarnation)
        await until(lambda: "default/net" not in [cell.name for cell in running.keeper.models])
        with pytest.raises(PsfError):
            await ps.push_pull(timeout=3)
        model, again = await opened(one, ASP(), "net")
        model.fill(1.0)
        await again.push_pull()
        assert model.is_all(-1.0)
        assert len(table(running, "net").shards) == 1
        await again.close()


async def test_a_job_that_ended_takes_its_models_along_unless_they_are_kept():
    async with servers(1) as running:
        async with running.trainer(lease_s=0.5) as one:
            await opened(one, ASP(), "kept", keep=True)
            await opened(one, ASP(), "freed")
        await until(lambda: [cell.name for cell in running.keeper.models] == ["default/kept"])
        shard = running.shards["parameter-server-0"]
        await until(lambda: list(shard._hosts) == ["default/kept"])
        async with running.trainer() as two:
            model = Net()
            async with await open_parameter_server(two, model, name="kept", reader=True):
                assert model.is_all(0.0)


async def test_a_new_coordinator_knows_all_models_and_goes_on():
    store = MemoryStore()
    async with servers(2, store=store) as running, running.trainer() as one:
        m0, a = await opened(one, BSP(), "net")
        m0.fill(1.0)
        await a.push_pull()
        async with Coordinator(store) as second, Keeper(second, Security.plaintext()) as keeper:
            assert [cell.current() for cell in keeper.models] == [table(running, "net")]
            shards = running.shards.values()
            await until(lambda: all(shard._term == second.term for shard in shards))
            m0.fill(1.0)
            await a.push_pull()
            assert m0.is_all(-2.0)
            number = keeper.models.next_number()
            assert number > max(r.writer for r in table(running, "net").registrations)


async def test_leaving_twice_or_a_model_that_is_gone_is_no_error(made: Servers):
    await made.keeper.leave("default/none", 1, 0, _soon())
    with pytest.raises(UnknownTable):
        await made.keeper.commit_step("default/none", 1, 0, _soon())


def test_names_sort_as_people_count():
    names = ["shard-10", "shard-9", "shard", "a-1"]
    assert sorted(names, key=_natural) == ["a-1", "shard", "shard-9", "shard-10"]


def _soon() -> Deadline:
    return Deadline.after(10)


async def test_with_spares_a_coordinator_that_forgot_is_reminded(made: Servers, monkeypatch):
    monkeypatch.setattr(handle, "REMIND_SECONDS", 0.05)
    name = f"net-{next(_names)}"
    policy = BSP(trainers=2, spares=1)
    async with made.trainer() as one, made.trainer() as two:
        (m0, a), _ = await asyncio.gather(opened(one, policy, name), opened(two, policy, name))
        m0.fill(1.0)
        cell = made.keeper.models.find(f"default/{name}")
        commit = made.keeper.commit_step

        async def forget(*_: object) -> None:
            monkeypatch.setattr(made.keeper, "commit_step", commit)

        monkeypatch.setattr(made.keeper, "commit_step", forget)
        await a.push_pull(timeout=10)
        assert cell.committed
        assert m0.is_all(-1.0)
        await a.close()
