"""A line to a shard survives broken connections with the same bytes, and ends when the shard is gone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import numpy as np
import pytest

from psframework import nn, optim
from psframework.errors import PeerLost, WireError
from psframework.parameter_server.client import open_parameter_server
from psframework.parameter_server.handle import ParameterServer
from psframework.parameter_server.link import ShardLink, Target
from psframework.parameter_server.policy import ASP
from psframework.parameter_server.registry import ShardRef
from psframework.rpc.deadline import Deadline
from psframework.testing.faults import FaultyLink
from psframework.testing.servers import Servers, servers
from psframework.wire.lanes import Lane


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(np.zeros(300_000, np.float32))


@pytest.fixture
async def behind_a_proxy(
    monkeypatch: pytest.MonkeyPatch,
) -> AsyncIterator[tuple[Net, ParameterServer, FaultyLink, Servers]]:
    """A trainer whose data calls pass through a proxy that breaks; the keeper's calls do not."""
    monkeypatch.setenv("PSF_SOCKETS", "0")  # they would not pass through it
    lanes = frozenset({Lane.INLINE, Lane.STRIPED})
    async with servers(1, lanes=lanes) as made, made.trainer() as runtime:
        shard = made.coordinator.view.select("parameter-server", None)[0]
        async with FaultyLink(shard.addresses[0]) as proxy:
            connect = runtime.agent.connect

            async def through_the_proxy(addresses, **changes):
                return await connect((proxy.address,), **changes)

            runtime.agent.connect = through_the_proxy  # type: ignore[method-assign]
            model = Net()
            options = {"optimizer": optim.SGD(lr=1.0), "consistency": ASP()}
            ps = await open_parameter_server(runtime, model, **options)
            yield model, ps, proxy, made
            await ps.close()


async def test_cut_at_any_byte_a_push_counts_once(behind_a_proxy):
    model, ps, proxy, _ = behind_a_proxy
    for step, nbytes in enumerate((0, 100, 5_000, 400_000, 1_300_000, 2_000_000)):
        model.w.grad = np.ones(300_000, np.float32)
        proxy.after(nbytes, proxy.cut)
        await ps.push_pull(timeout=20)
        assert np.all(model.w.data == -1.0 - step), nbytes


async def test_a_session_that_is_lost_for_good_is_made_anew_with_the_same_sequence(behind_a_proxy):
    model, ps, proxy, _ = behind_a_proxy
    model.w.grad = np.ones(300_000, np.float32)
    proxy.after(700_000, proxy.refuse)
    under_way = asyncio.ensure_future(ps.push_pull(timeout=30))
    peer = ps._links[0]._peer
    async with asyncio.timeout(20):
        while peer.lost is None:  # noqa: ASYNC110 - nobody is told
            await asyncio.sleep(0.01)
    proxy.heal()
    await under_way
    assert ps._links[0]._peer is not peer
    assert np.all(model.w.data == -1.0)


async def test_a_shard_that_is_gone_is_named(behind_a_proxy):
    model, ps, proxy, made = behind_a_proxy
    model.w.grad = np.ones(300_000, np.float32)
    proxy.refuse()
    under_way = asyncio.ensure_future(ps.push_pull(timeout=30))
    shard = made.coordinator.view.select("parameter-server", None)[0]
    await made.coordinator.leave(shard.incarnation)
    with pytest.raises(PeerLost, match="parameter-server-0") as caught:
        await under_way
    assert caught.value.peer == "parameter-server-0"


async def test_parts_of_the_wrong_size_are_refused(behind_a_proxy):
    _, ps, _, _ = behind_a_proxy
    link = ps._links[0]
    take = link._taker(Target(ps._memory.spare, ps._memory.side, 1))
    take(0, memoryview(b""))
    for position, part in ((0, b"123"), (99, bytes(64))):
        with pytest.raises(WireError, match="as partition number"):
            take(position, memoryview(part))


async def test_nobody_at_the_address_ends_at_the_deadline():
    async with servers(1) as made, made.trainer() as runtime:
        shard = made.coordinator.view.select("parameter-server", None)[0]
        nowhere = ShardRef(shard.name, shard.incarnation, ("127.0.0.1:1",))
        link = ShardLink(runtime, "t", 1, nowhere, ())
        with pytest.raises(PeerLost):
            await link.connect(Deadline.after(0.3))
