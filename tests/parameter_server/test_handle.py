"""A model on the server: what push, pull, push_pull, leave and close do, on every lane and policy."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from psframework import nn, optim
from psframework.errors import ArgumentError, ContextClosed, DeadlineExceeded, Evicted, PeerLost
from psframework.parameter_server.client import open_parameter_server
from psframework.parameter_server.handle import ParameterServer
from psframework.parameter_server.policy import ASP, BSP, SSP
from psframework.testing.servers import Servers, servers
from psframework.wire.lanes import Lane, available


class Net(nn.Module):
    def __init__(self, size: int = 1000) -> None:
        super().__init__()
        self.big = nn.Parameter(np.zeros((size, 3), np.float32))
        self.tiny = nn.Parameter(np.zeros(2, np.float32))
        self.wide = nn.Parameter(np.zeros(5, np.float64))

    def fill(self, value: float) -> None:
        for parameter in self.parameters():
            parameter.grad = np.full_like(parameter.data, value)

    def all(self, value: float) -> bool:
        return all(bool(np.all(parameter.data == value)) for parameter in self.parameters())


LANES = [pytest.param(available(), id="all"), pytest.param({Lane.INLINE, Lane.STRIPED}, id="no-shm")]


@pytest.fixture(scope="module", params=LANES)
async def made(request):
    async with servers(2, lanes=frozenset(request.param)) as running:
        yield running


_names = iter(range(10_000))


async def opened(
    runtime, policy, *, name: str = "", size: int = 1000, **options
) -> tuple[Net, ParameterServer]:
    model = Net(size)
    name = name or f"net-{next(_names)}"
    options = {"optimizer": optim.SGD(lr=1.0), "consistency": policy, "name": name} | options
    return model, await open_parameter_server(runtime, model, **options)


@pytest.mark.parametrize("size", [1000, 400_000])
@pytest.mark.parametrize("policy", [ASP(), BSP(), SSP(1)], ids=lambda p: p.name)
async def test_gradients_are_taken_and_parameters_follow(made: Servers, policy, size):
    async with made.trainer() as runtime:
        model, ps = await opened(runtime, policy, size=size)
        async with ps:
            for step in range(3):
                model.fill(1.0)
                await ps.push()
                assert all(parameter.grad is None for parameter in model.parameters())
                assert ps.step == step + 1
                await ps.pull()
                assert model.all(-1.0 - step)
            model.fill(2.0)
            await ps.push_pull()
            assert model.all(-5.0)


async def test_two_bsp_trainers_get_the_mean_and_nobody_runs_ahead(made: Servers):
    async with made.trainer() as one, made.trainer() as two:
        name = f"net-{next(_names)}"
        (m0, a), (m1, b) = await asyncio.gather(
            opened(one, BSP(trainers=2), name=name), opened(two, BSP(trainers=2), name=name)
        )
        m0.fill(1.0)
        await a.push()
        with pytest.raises(DeadlineExceeded, match=r"step 0 .* waits for trainer-\d"):
            await a.pull(timeout=0.1)
        m1.fill(3.0)
        await asyncio.gather(a.pull(), b.push_pull())
        assert m0.all(-2.0)
        assert m1.all(-2.0)
        await a.close()
        m1.fill(1.0)
        await b.push_pull()
        assert m1.all(-3.0)
        await b.close()


@pytest.mark.parametrize("policy", [None, BSP()], ids=["default", "BSP()"])
async def test_under_psf_run_step_0_waits_for_all_ranks(made: Servers, policy, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    async with made.trainer() as one, made.trainer() as two:
        name = f"net-{next(_names)}"
        m0, a = await opened(one, policy, name=name)
        m0.fill(1.0)
        await a.push()
        with pytest.raises(DeadlineExceeded, match=r"step 0 .* waits for more trainers"):
            await a.pull(timeout=0.1)
        m1, b = await opened(two, policy, name=name)
        m1.fill(3.0)
        await asyncio.gather(a.pull(), b.push_pull())
        assert m0.all(-2.0)
        await asyncio.gather(a.close(), b.close())


async def test_leaving_unblocks_who_waits(made: Servers):
    async with made.trainer() as one, made.trainer() as two:
        name = f"net-{next(_names)}"
        (m0, a), (_, b) = await asyncio.gather(
            opened(one, BSP(trainers=2), name=name), opened(two, BSP(trainers=2), name=name)
        )
        m0.fill(1.0)
        waiting = asyncio.ensure_future(a.push_pull())
        await b.leave()
        await waiting
        assert m0.all(-1.0)
        with pytest.raises(ContextClosed, match="left or closed"):
            await b.pull()
        await a.close()
        await a.close()


async def test_a_newcomer_counts_from_the_next_step_on(made: Servers):
    async with made.trainer() as one, made.trainer() as two:
        name = f"net-{next(_names)}"
        m0, a = await opened(one, BSP(), name=name)
        for _ in range(3):
            m0.fill(1.0)
            await a.push_pull()
        m1, b = await opened(two, BSP(), name=name)
        assert b.step == 3
        assert m1.all(-3.0)
        m0.fill(1.0)
        m1.fill(5.0)
        await asyncio.gather(a.push_pull(), b.push_pull())
        assert m0.all(-6.0)
        assert m1.all(-6.0)
        await a.close()
        await b.close()


async def test_a_reader_pulls_and_never_counts(made: Servers):
    async with made.trainer() as one, made.trainer() as two:
        name = f"net-{next(_names)}"
        m0, a = await opened(one, BSP(), name=name)
        m1, reader = await opened(two, None, name=name, reader=True, optimizer=None)
        m0.fill(1.0)
        await a.push_pull()
        await reader.pull()
        assert m1.all(-1.0)
        m1.fill(1.0)
        with pytest.raises(ArgumentError, match="reader=True"):
            await reader.push()
        await reader.close()
        await a.close()


async def test_missing_gradients_leave_their_partitions_alone(made: Servers):
    async with made.trainer() as runtime:
        model, ps = await opened(runtime, ASP(), optimizer=optim.SGD(lr=1.0, weight_decay=0.5))
        async with ps:
            model.wide.grad = np.ones(5)
            await ps.push_pull()
            assert np.all(model.wide.data == -1)
            await ps.push_pull()  # no gradients at all: the step still counts
            assert np.all(model.wide.data == -1)
            assert ps.step == 2


async def test_a_parameter_without_a_gradient_is_zero_where_its_partition_travels(made: Servers):
    async with made.trainer() as runtime:
        model, ps = await opened(runtime, ASP())
        async with ps:
            for _ in range(3):  # stale gradients lie in both arenas by now
                model.fill(1.0)
                await ps.push_pull()
            model.tiny.grad = np.ones(2, np.float32)
            await ps.push_pull()
            assert np.all(model.tiny.data == -4)
            assert np.all(model.big.data == -3)


async def test_only_what_changed_travels(made: Servers):
    async with made.trainer() as runtime:
        model, ps = await opened(runtime, ASP(), size=400_000)
        async with ps:
            await ps.pull()
            await ps.pull()
            before = sum(received for _, received in ps.stats().shards.values())
            model.wide.grad = np.ones(5)
            await ps.push()
            await ps.pull()
            await ps.pull()
            after = sum(received for _, received in ps.stats().shards.values())
            assert 0 < after - before < 10_000
            assert np.all(model.wide.data == -1)
            assert np.all(model.big.data == 0)


@pytest.mark.parametrize("method", ["fp16", "bf16"])
async def test_narrow_gradients_arrive_rounded(made: Servers, method):
    async with made.trainer() as runtime:
        model, ps = await opened(runtime, BSP())
        async with ps:
            model.fill(1.5)
            await ps.push(compression=method)
            await ps.pull()
            assert model.all(-1.5)
            model.fill(1.5)
            sent = sum(s for s, _ in ps.stats().shards.values())
            await ps.push_pull(compression=method)
            narrow = sum(s for s, _ in ps.stats().shards.values()) - sent
            assert model.all(-3.0)
            if Lane.SHM not in made.lanes:
                assert narrow < 0.6 * sum(p.data.nbytes for p in model.parameters())


async def test_backward_may_go_on_while_a_push_is_under_way(made: Servers):
    async with made.trainer() as runtime:
        model, ps = await opened(runtime, ASP(), size=100_000)
        async with ps:
            for _ in range(5):
                (model.big * 1.0).sum().backward()
                under_way = asyncio.ensure_future(ps.push())
                await asyncio.sleep(0)
                (model.big * 3.0).sum().backward()
                await under_way
                await ps.push_pull()
            assert np.all(model.big.data == -20)


@pytest.mark.parametrize("policy", [ASP(), BSP()], ids=lambda p: p.name)
async def test_a_cancelled_push_is_finished_by_the_next_call_and_counts_once(made: Servers, policy):
    async with made.trainer() as runtime:
        model, ps = await opened(runtime, policy, size=100_000)
        async with ps:
            for turns in range(12):
                model.fill(1.0)
                work = asyncio.ensure_future(ps.push() if turns % 2 else ps.push_pull())
                for _ in range(turns):
                    await asyncio.sleep(0)
                work.cancel()
                await asyncio.gather(work, return_exceptions=True)
                taken = model.big.grad is None
                model.fill(1.0)
                await ps.push_pull()
                expected = -2.0 if taken else -1.0
                assert model.all(expected), turns
                # back to zero for the next round
                model.fill(expected)
                await ps.push_pull()
                assert model.all(0.0)


async def test_many_tiny_parameters_travel_packed(made: Servers):
    class Many(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            for i in range(1000):
                setattr(self, f"p{i}", nn.Parameter(np.zeros(3, np.float32)))

    async with made.trainer() as runtime:
        model = Many()
        name = f"net-{next(_names)}"
        ps = await open_parameter_server(
            runtime, model, name=name, optimizer=optim.SGD(lr=1.0), consistency=ASP()
        )
        async with ps:
            assert len(ps._partitions) <= 4
            for parameter in model.parameters():
                parameter.grad = np.ones(3, np.float32)
            await ps.push_pull()
            assert all(np.all(p.data == -1) for p in model.parameters())


async def test_statistics_and_repr(made: Servers):
    async with made.trainer() as runtime:
        model, ps = await opened(runtime, ASP())
        model.fill(1.0)
        await ps.push_pull()
        stats = ps.stats()
        assert stats.pushes == 1
        assert stats.outcomes["applied"] == 1
        nbytes = sum(p.data.nbytes for p in model.parameters())
        assert sum(sent for sent, _ in stats.shards.values()) >= nbytes
        lane = Lane.SHM if Lane.SHM in made.lanes else Lane.INLINE
        assert stats.lanes.sent[lane].nbytes >= nbytes
        assert "on 2 shards, step 1" in repr(ps)
        await ps.close()
        assert "closed" in repr(ps)
        assert model.all(-1.0)


async def test_an_own_lease_that_lapsed_stops_nothing_but_an_eviction_does(made: Servers, monkeypatch):
    async with made.trainer() as runtime:
        _, ps = await opened(runtime, ASP())
        error: Exception = PeerLost("no coordinator renewed it", reason="lease")

        def check() -> None:
            raise error

        monkeypatch.setattr(runtime.membership, "check", check)
        await ps.pull()
        error = Evicted("fenced")
        with pytest.raises(Evicted):
            await ps.pull()
        await ps.close()


async def test_leaving_does_not_wait_for_a_pull_that_waits_for_others(made: Servers):
    async with made.trainer() as one, made.trainer() as two:
        name = f"net-{next(_names)}"
        (m0, a), (m1, b) = await asyncio.gather(
            opened(one, BSP(trainers=2), name=name), opened(two, BSP(trainers=2), name=name)
        )
        m0.fill(1.0)
        waiting = asyncio.ensure_future(a.push_pull())
        while a._pending is None:  # noqa: ASYNC110 - a turn or two
            await asyncio.sleep(0)
        await a._pending.committed.wait()
        async with asyncio.timeout(1.5):
            await a.leave()
        with pytest.raises((Evicted, ContextClosed)):
            await waiting
        m1.fill(3.0)
        await b.push_pull()
        assert m1.all(-2.0)  # the last push of a was complete, so it counts
        await a.close()
        await b.close()
