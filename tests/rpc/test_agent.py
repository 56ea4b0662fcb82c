"""One agent: its peers are found again, told dead, and closed."""

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from psframework.errors import ArgumentError, PeerLost
from psframework.rpc.agent import Agent
from psframework.rpc.call import PeerInfo
from psframework.rpc.deadline import Deadline
from psframework.rpc.limits import AgentOptions
from psframework.rpc.security import Security
from psframework.wire.lanes import Lane


async def test_one_peer_for_each_life_however_often_it_is_asked_for(office: Any) -> None:
    agent = await office.client()
    peers = await asyncio.gather(*(office.dial(agent) for _ in range(5)))
    assert len(set(map(id, peers))) == 1
    assert agent.peer_for("office") is peers[0]
    assert agent.peer_for("office", 99_999) is None
    assert agent.peer_for("nobody") is None


async def test_the_declared_dead_fail_at_once(office: Any) -> None:
    agent = await office.client()
    peer = await office.dial(agent)
    call = asyncio.create_task(office.echo(peer, "x", "Hold"))
    await office.desk.started.wait()
    agent.lost("office", peer.info.incarnation, "lease")
    with pytest.raises(PeerLost, match="declared dead") as caught:
        await call
    assert caught.value.reason == "lease"
    with pytest.raises(PeerLost, match="declared dead"):
        await agent.connect(
            [office.address],
            name="office",
            role="server",
            incarnation=peer.info.incarnation,
            deadline=Deadline.after(5),
        )
    agent.lost("office", 12345)  # of somebody unknown: nothing happens


async def test_closing_ends_all_sessions_and_refuses_new_ones(office: Any) -> None:
    agent = await office.client()
    await office.dial(agent)
    await agent.close()
    assert agent.peers == ()
    with pytest.raises(ArgumentError, match="closed"):
        await office.dial(agent)
    await office.until(lambda: office.agent.peers == ())


async def test_a_cancelled_connect_leaves_no_task(office: Any) -> None:
    agent = await office.client()
    before = len(asyncio.all_tasks())
    task = asyncio.create_task(
        agent.connect(["127.0.0.1:1"], name="x", role="server", deadline=Deadline.after(60))
    )
    await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await office.until(lambda: len(asyncio.all_tasks()) == before)


async def test_shared_memory_is_agreed_on_one_host_and_not_where_it_is_switched_off(office: Any) -> None:
    near = await office.peer(name="near")
    assert Lane.SHM in near.lanes
    far = await office.peer(name="far", options=office.options("inline,striped"))
    assert far.lanes == {Lane.INLINE, Lane.STRIPED}


async def test_without_a_place_for_the_socket_there_is_no_shared_memory(office: Any, tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a directory")
    peer = await office.peer(options=AgentOptions(segment_directory=str(blocked)))
    assert Lane.SHM not in peer.lanes
    assert await office.echo(peer, "x") == "x"


async def test_an_agent_that_never_connects_closes_too(tmp_path: Path) -> None:
    options = AgentOptions(segment_directory=str(tmp_path))
    info = PeerInfo("a", "b", "", 1)
    async with Agent(info, security=Security.plaintext(), options=options) as agent:
        assert agent.peers == () and len(agent.handlers()) == 1
    assert os.listdir(tmp_path) == []


async def test_services_can_be_mounted_until_the_server_starts(office: Any) -> None:
    agent = await office.client(name="late")
    agent.mount(type(office.desk)())
    assert len(agent.handlers()) == 2
    with pytest.raises(ArgumentError, match="twice"):
        agent.mount(type(office.desk)())
