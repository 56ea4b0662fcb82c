"""One agent: its peers are found again, told dead, and closed."""

import asyncio
import os
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from psframework.errors import ArgumentError, PeerLost, PermissionDenied
from psframework.rpc.call import PeerInfo
from psframework.rpc.deadline import Deadline
from psframework.rpc.limits import AgentOptions
from psframework.rpc.options import server_options
from psframework.rpc.security import certificates
from psframework.rpc.security.credentials import Security
from psframework.rpc.serve import ServeOptions, serve
from psframework.rpc.session.agent import Agent
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


async def test_nobody_waits_for_the_stalled_who_may_come_back(office: Any) -> None:
    agent = await office.client()
    peer = await office.dial(agent)
    call = asyncio.create_task(office.echo(peer, "x", "Hold"))
    await office.desk.started.wait()
    still = True
    agent.stalled("office", peer.info.incarnation, lambda: still)
    with pytest.raises(PeerLost, match="is stalled") as caught:
        await call
    assert (caught.value.reason, caught.value.may_have_run) == ("stalled", True)
    with pytest.raises(PeerLost, match="is stalled") as caught:
        await office.echo(peer, "y")
    assert (caught.value.reason, caught.value.may_have_run) == ("stalled", False)
    await office.until(lambda: office.desk.cancelled == ["x"])  # it is told, and will hear of it
    still = False
    assert await office.echo(peer, "z") == "z"
    assert await office.dial(agent) is peer and "y" not in office.desk.ran
    agent.stalled("office", 12345, lambda: True)  # of somebody unknown: nothing happens


async def test_dialling_the_stalled_ends_too(office: Any) -> None:
    agent = await office.client()
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        dialling = asyncio.create_task(
            agent.connect([address], name="x", role="worker", incarnation=5, deadline=Deadline.after(60))
        )
        await office.until(lambda: agent._dialing)
        agent.stalled("x", 5, lambda: True)
        with pytest.raises(PeerLost, match="is stalled"):
            await dialling


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


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("certs")
    certificates.init(root)
    certificates.init(root / "foreign")
    return {
        "office": certificates.issue(root, "server", "office"),
        "worker": certificates.issue(root, "worker", "client"),
        "boss": certificates.issue(root, "boss"),
        "foreign": certificates.issue(root / "foreign", "worker", "client"),
    }


@pytest.fixture
async def tls_office(office: Any, folders: dict[str, Path]) -> Any:
    """An office that asks for certificates."""
    server_security = Security.from_files(folders["office"])
    server = grpc.aio.server(options=server_options())
    info = PeerInfo("office", "server", "", 1)
    agent = Agent(info, security=server_security, services=[office.desk], options=office.options())
    server.add_generic_rpc_handlers(tuple(agent.handlers()))
    credentials = server_security.server_credentials()
    assert credentials is not None
    port = server.add_secure_port("127.0.0.1:0", credentials)
    await server.start()
    async with agent:
        yield agent, f"127.0.0.1:{port}"
    await server.stop(0)


async def call_over_tls(
    office: Any,
    address: str,
    folder: Path,
    *,
    role: str = "worker",
    name: str = "client",
    whom: str = "office",
) -> tuple[str, PeerInfo]:
    info = PeerInfo(name, role, "", 9)
    async with Agent(info, security=Security.from_files(folder), options=office.options()) as agent:
        peer = await agent.connect([address], name=whom, role="server", deadline=Deadline.after(3))
        return await office.echo(peer, "x", "OnlyBoss" if role == "boss" else "Echo"), peer.info


async def test_over_mtls_certificates_prove_who_calls(
    office: Any, tls_office: Any, folders: dict[str, Path]
) -> None:
    agent, address = tls_office
    answer, info = await call_over_tls(office, address, folders["worker"])
    assert answer == "x" and info.name == "office"
    answer, _ = await call_over_tls(office, address, folders["boss"], role="boss", name="anybody")
    assert answer == "x"
    assert agent.peers == () or agent.peers[0].info.certificate_name


@pytest.mark.parametrize(
    ("folder", "claim", "words"),
    [
        ("worker", {"role": "boss"}, "certificate is of role 'worker'"),
        ("worker", {"name": "somebody"}, "certificate is for 'client'"),
        ("foreign", {}, "certificate|TLS"),
        ("worker", {"whom": "another"}, "certificate|TLS|not here"),
    ],
)
async def test_over_mtls_a_wrong_certificate_is_refused(
    office: Any, tls_office: Any, folders: dict[str, Path], folder: str, claim: dict[str, str], words: str
) -> None:
    _, address = tls_office
    with pytest.raises((PermissionDenied, PeerLost), match=words):
        await call_over_tls(office, address, folders[folder], **claim)
    answer, _ = await call_over_tls(office, address, folders["worker"])
    assert answer == "x"


async def test_who_is_dead_is_not_accepted_under_its_name_alone(office: Any) -> None:
    agent = await office.client()
    agent.lost("office", office.agent.identity.incarnation)
    with pytest.raises(PeerLost, match="declared dead"):
        await office.dial(agent)
    assert agent.peers == ()


async def test_every_connect_has_its_own_deadline_and_ends_with_the_agent(office: Any) -> None:
    silent = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
    address = f"127.0.0.1:{silent.sockets[0].getsockname()[1]}"
    agent = await office.client()

    def connect(seconds: float) -> asyncio.Task[Any]:
        deadline = Deadline.after(seconds)
        return asyncio.create_task(agent.connect([address], name="x", role="server", deadline=deadline))

    first, second, third = connect(30), connect(30), connect(0.1)
    async with asyncio.timeout(5):
        with pytest.raises(PeerLost, match="under way"):
            await third
        await agent.close()
        for each in (first, second):
            with pytest.raises(PeerLost, match="ended its connections"):
                await each
    assert not agent._tasks
    silent.close()


async def test_draining_ends_what_runs_also_where_it_needs_new_streams(office: Any) -> None:
    agent, options = office.agent, ServeOptions(idle=lambda: office.agent.idle, announce=False)
    async with serve(agent.handlers(), security=Security.plaintext(), options=options) as server:
        peer = await office.peer(server.address, options=office.options("inline,striped"))
        late = await office.client("late")
        held = asyncio.create_task(office.echo(peer, "x", "Hold"))
        await office.desk.started.wait()
        agent.drain()
        server.request_stop()
        stopped = asyncio.create_task(server.wait_stopped())
        await office.until(lambda: server._guard.draining)
        data = [bytes(300_000)]
        assert (await office.send(peer, "Mirror", data))[1] == data  # its streams are opened only now
        with pytest.raises(PeerLost, match="is ending") as caught:
            await office.dial(late, server.address)
        assert not caught.value.may_have_run
        office.desk.gate.set()
        assert await held == "x"
        await stopped


async def test_whoever_waits_its_turn_to_dial_hears_that_the_member_is_dead(office: Any) -> None:
    agent = await office.client()
    with socket.socket() as silent:  # accepts, and never answers
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        dials = [
            asyncio.create_task(
                agent.connect([address], name="x", role="worker", incarnation=5, deadline=Deadline.after(60))
            )
            for _ in range(3)
        ]
        await asyncio.sleep(0.02)
        agent.lost("x", 5)
        results = await asyncio.wait_for(asyncio.gather(*dials, return_exceptions=True), 5)
    assert all(isinstance(result, PeerLost) and result.reason == "lease" for result in results)


async def test_a_close_that_nobody_waits_for_still_ends_what_it_can(
    office: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("psframework.rpc.session.peer.GOODBYE_SECONDS", 30)
    agent = await office.client("other")
    agent.listen("127.0.0.1")
    peer = await office.dial(agent)
    monkeypatch.setattr(peer._ended, "set", lambda: None)  # the other end's goodbye does not come
    closing = asyncio.create_task(agent.close())
    await office.until(lambda: peer._closing)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    assert peer.lost is not None and not agent.peers
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", agent._home.socket_port))
    await agent.close()
    assert not agent._tasks


async def test_where_no_port_is_free_the_log_says_what_to_do(
    office: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[dict[str, str]] = []
    logger = SimpleNamespace(info=lambda _, **fields: told.append(fields))
    monkeypatch.setattr("psframework.rpc.session.agent.get_logger", lambda _: logger)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        office.agent.listen("127.0.0.1", [taken.getsockname()[1]])
    assert "no port" in told[0]["reason"] and "--port-range" in told[0]["fix"]
    peer = await office.peer(options=office.options("inline,striped"))
    assert await office.echo(peer, "x") == "x" and not office.agent._home.socket_port
