"""Sessions over TCP: they move where a port can be reached, stay where not, resume when a socket breaks."""

import asyncio
import gc
import os
import socket
import time
import weakref
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any

import pytest
from structlog.testing import capture_logs

from psframework.errors import DeadlineExceeded, PeerLost, PermissionDenied, WireError
from psframework.rpc.call import PeerInfo
from psframework.rpc.deadline import Deadline
from psframework.rpc.limits import AgentOptions
from psframework.rpc.security import certificates
from psframework.rpc.security.credentials import Security
from psframework.rpc.serve import ServeOptions, serve
from psframework.rpc.session import sockets, stream
from psframework.rpc.session.agent import Agent
from psframework.rpc.session.sockets import Sockets, pack_number, read_number
from psframework.testing.faults import FaultyLink
from psframework.wire import sockets as tcp
from psframework.wire.lanes import Lane
from psframework.wire.tls_sockets import TlsSocket

MIB = 1 << 20
SIZES = (MIB, 5 * MIB + 3, 10, 0, 2 * MIB, 900_000, *[3000] * 400)


def moved(peer: Any) -> bool:
    link = peer._port.link
    return link is not None and link._shortcut is not None and link._moved and link._arrives_there


def family(peer: Any) -> int:
    return int(peer._port.link._shortcut._socket.family)


def audited(lines: Iterable[Any]) -> list[Any]:
    return [line for line in lines if line.get("logger") == "psframework.audit"]


@pytest.fixture
async def listening(office: Any) -> Any:
    office.agent.listen("127.0.0.1")
    return office


@pytest.fixture
async def between(listening: Any) -> AsyncIterator[FaultyLink]:
    """A proxy through which all sockets go; gRPC does not."""
    async with FaultyLink(f"127.0.0.1:{listening.agent._home.socket_port}") as proxy:
        listening.agent._home.socket_port = int(proxy.address.rpartition(":")[2])
        yield proxy


async def far(office: Any, **more: Any) -> Any:
    """A peer as of another host, once it has moved."""
    peer = await office.peer(options=office.options("inline,striped", **more))
    await office.until(lambda: moved(peer) and moved(office.agent.peers[0]))
    return peer


def test_what_a_socket_is_for() -> None:
    assert read_number(pack_number(5, stripe=True)) == (5, True)
    assert read_number(pack_number(6, stripe=False)) == (6, False)


async def test_calls_and_payloads_take_sockets_both_ways(listening: Any) -> None:
    peer = await far(listening)
    assert family(peer) == socket.AF_INET and peer.lanes == {Lane.INLINE, Lane.STRIPED}
    assert await listening.echo(peer, "x") == "x"
    parts = [os.urandom(size) for size in SIZES]
    for method in ("Mirror", "Stream"):
        _, got = await listening.send(peer, method, parts)
        assert [bytes(part) for part in got] == parts
    assert peer.bulk._sockets and not peer.bulk._stripes and listening.agent.peers[0].bulk._sockets
    assert peer.stats.sent[Lane.STRIPED].messages == 2
    await listening.until(lambda: peer.bulk.is_idle and listening.agent.peers[0].bulk.is_idle)


async def test_parts_of_a_reply_stay_valid_while_others_come(listening: Any) -> None:
    peer = await far(listening)
    blocks = [os.urandom(3 * MIB) for _ in range(6)]
    kept = [(await listening.send(peer, "Mirror", [block]))[1][0] for block in blocks]
    assert [bytes(view) for view in kept] == blocks


async def test_many_transfers_at_once(listening: Any) -> None:
    peer = await far(listening)
    blocks = [os.urandom(100_000 + 300_000 * number) for number in range(12)]
    replies = await asyncio.gather(*(listening.send(peer, "Mirror", [block, b"end"]) for block in blocks))
    assert [[bytes(part) for part in got] for _, got in replies] == [[block, b"end"] for block in blocks]


async def test_one_host_still_takes_its_own_ways(listening: Any) -> None:
    near = await listening.peer()
    await listening.until(lambda: moved(near))
    assert family(near) == socket.AF_UNIX and Lane.SHM in near.lanes


@pytest.mark.parametrize("side", ["dials", "listens"])
async def test_sockets_can_be_switched_off(office: Any, monkeypatch: pytest.MonkeyPatch, side: str) -> None:
    monkeypatch.setenv("PSF_SOCKETS", "0")
    assert not AgentOptions().sockets
    monkeypatch.delenv("PSF_SOCKETS")
    if side == "listens":
        object.__setattr__(office.agent.options, "sockets", False)
    office.agent.listen("127.0.0.1")
    assert bool(office.agent._home.socket_port) == (side == "dials")
    peer = await office.peer(options=office.options("inline,striped", sockets=side == "listens"))
    _, got = await office.send(peer, "Mirror", [bytes(2 * MIB)])
    assert len(got[0]) == 2 * MIB and peer.bulk._stripes and not peer.bulk._sockets
    assert peer._port.link._shortcut is None


async def test_a_port_that_can_not_be_reached_delays_nothing(
    listening: Any, between: FaultyLink, monkeypatch: pytest.MonkeyPatch
) -> None:
    between.blackhole()
    tried: list[object] = []
    real = tcp.connect

    async def connect(*arguments: Any, **more: Any) -> Any:
        try:
            return await real(*arguments, **more, seconds=0.3)
        except Exception as error:
            tried.append(error)
            raise

    monkeypatch.setattr("psframework.rpc.session.sockets.connect", connect)
    monkeypatch.setattr("psframework.rpc.session.sockets.PAUSES", (0.05, 0.05))
    peer = await listening.peer(options=listening.options("inline,striped"))
    _, got = await listening.send(peer, "Mirror", [bytes(5 * MIB)])  # before the attempt has failed
    assert len(got[0]) == 5 * MIB and not tried
    await listening.until(lambda: len(tried) == 9)  # for calls and two stripes
    assert await listening.echo(peer, "x") == "x" and not moved(peer)
    assert peer._port.link.number == 1


async def test_a_loop_that_was_busy_meanwhile_moves_all_the_same(
    listening: Any, between: FaultyLink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("psframework.rpc.session.sockets.PAUSES", (0.05, 0.05))
    between.blackhole()
    peer = await listening.peer(options=listening.options("inline,striped"))
    await asyncio.sleep(0)
    time.sleep(1.2)  # noqa: ASYNC251 - the first attempt ends while nothing can be done about it
    await asyncio.sleep(0.01)
    between.heal()
    await listening.until(lambda: moved(peer) and moved(listening.agent.peers[0]))


async def test_a_socket_given_up_just_as_it_was_taken_loses_nothing(
    listening: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = Sockets._open

    async def too_late(self: Sockets, *, stripe: bool) -> socket.socket:
        sock = await opened(self, stripe=stripe)
        if self._link.number > 1:
            return sock
        sock.close()
        raise DeadlineExceeded("the answer came too late")

    monkeypatch.setattr(stream, "SHORTCUT_SECONDS", 0.2)
    monkeypatch.setattr(sockets, "PAUSES", ())
    monkeypatch.setattr(Sockets, "_open", too_late)
    peer = await listening.peer(options=listening.options("inline,striped"))
    await listening.until(lambda: peer._port.link and peer._port.link._arrives_there)
    async with asyncio.timeout(5):
        assert await listening.echo(peer, "x") == "x"  # the reply went into the dead socket at first
    await listening.until(lambda: moved(peer) and peer._port.link.number == 2)


async def test_payloads_that_began_with_grpc_move_over(listening: Any, between: FaultyLink) -> None:
    between.blackhole()
    peer = await listening.peer(options=listening.options("inline,striped"))
    block = os.urandom(5 * MIB)
    await listening.send(peer, "Mirror", [block])
    assert peer.bulk._stripes and not peer.bulk._sockets
    between.heal()
    await listening.until(lambda: peer.bulk._sockets and listening.agent.peers[0].bulk._sockets)
    before = between.passed
    _, got = await listening.send(peer, "Mirror", [block])
    assert bytes(got[0]) == block and between.passed - before > 2 * len(block)


@pytest.mark.parametrize("method", ["Mirror", "Stream"])
@pytest.mark.parametrize("cuts", [(3 * MIB, 5 * MIB), (11 * MIB, 3 * MIB), (200_000, 17 * MIB)])
async def test_a_transfer_goes_on_where_a_socket_broke(
    listening: Any, between: FaultyLink, method: str, cuts: tuple[int, ...]
) -> None:
    parts = [os.urandom(size) for size in SIZES]
    peer = await far(listening)
    for place in (cuts[0], sum(cuts)):
        between.after(place, between.cut)
    for _ in range(4):
        _, got = await listening.send(peer, method, parts)
        assert [bytes(part) for part in got] == parts
    assert peer._port.link.number >= 2
    await listening.until(lambda: peer.bulk.is_idle and listening.agent.peers[0].bulk.is_idle)


async def test_calls_run_once_though_sockets_break(listening: Any, between: FaultyLink) -> None:
    peer = await far(listening)
    calls = []
    for number in range(120):
        calls.append(asyncio.create_task(listening.echo(peer, str(number), "EchoLater")))
        if number % 40 == 20:
            await listening.until(lambda: moved(peer))
            between.cut()
        await asyncio.sleep(0)
    assert await asyncio.gather(*calls) == [str(number) for number in range(120)]
    assert sorted(listening.desk.ran, key=int) == [str(number) for number in range(120)]


async def test_a_swallowing_socket_holds_calls_until_it_heals_or_breaks(
    listening: Any, between: FaultyLink
) -> None:
    peer = await far(listening)
    for end in (between.heal, between.cut):
        between.blackhole()
        call = asyncio.create_task(listening.send(peer, "Mirror", [bytes(3 * MIB)]))
        await asyncio.sleep(0.05)
        assert not call.done()
        end()
        between.heal()
        assert len((await call)[1][0]) == 3 * MIB


async def test_a_connection_that_ends_is_freed_without_the_collector(listening: Any) -> None:
    peer = await far(listening)
    await listening.send(peer, "Mirror", [bytes(2 * MIB)])
    things = [
        weakref.ref(thing)
        for side in (peer, listening.agent.peers[0])
        for thing in (side._port.link, *side.bulk._sockets)
    ]
    gc.collect()
    gc.disable()
    try:
        await peer.close()
        await listening.until(lambda: not any(thing() for thing in things))
    finally:
        gc.enable()


async def test_a_peer_that_has_gone_for_good_is_lost(listening: Any, between: FaultyLink) -> None:
    peer = await far(listening)
    between.refuse()
    for accepted in listening.agent.peers:
        accepted.fail("closed", "gone")
    with pytest.raises(PeerLost):
        await listening.echo(peer, "x")


async def test_a_socket_for_another_connection_is_refused(listening: Any) -> None:
    peer = await far(listening)
    accepted = listening.agent.peers[0]
    key, port = accepted.segments.key, listening.agent._home.socket_port
    with pytest.raises(WireError):
        await tcp.connect("127.0.0.1", port, key, pack_number(9, stripe=False))
    assert await listening.echo(peer, "x") == "x"


async def test_a_stripe_that_outlived_its_connection_carries_nothing(listening: Any) -> None:
    peer = await far(listening)
    old, (ours, theirs) = peer._port.link, socket.socketpair()
    old.close()
    await listening.until(lambda: peer._port.link not in (old, None))
    with theirs:
        await peer.run_socket(ours, old)
        assert theirs.recv(1) == b"" and not peer.bulk._sockets
    assert await listening.echo(peer, "x") == "x" and peer._port.link.number == 2


async def test_nonsense_on_a_stripe_ends_the_session(listening: Any) -> None:
    peer = await far(listening)
    accepted = listening.agent.peers[0]
    port = listening.agent._home.socket_port
    with await tcp.connect("127.0.0.1", port, accepted.segments.key, pack_number(1, stripe=True)) as sock:
        sock.send(b"\xff" * 64)
        await listening.until(lambda: accepted.lost and peer.lost)
    assert "broke the protocol" in str(accepted.lost)


async def test_nothing_listens_any_more_once_the_agent_is_closed(office: Any) -> None:
    agent = await office.client("other")
    agent.listen("127.0.0.1")
    port = agent._home.socket_port
    agent.listen("127.0.0.1")
    assert agent._home.socket_port == port
    socket.create_connection(("127.0.0.1", port)).close()
    await agent.close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))


async def test_a_stranger_is_written_to_the_audit_log(listening: Any) -> None:
    peer = await far(listening)
    with capture_logs() as lines:
        with pytest.raises(WireError):
            await tcp.connect("127.0.0.1", listening.agent._home.socket_port, os.urandom(32), 1)
        await listening.until(lambda: audited(lines))
    (line,) = audited(lines)
    assert (line["event"], line["what"]) == ("refused", "a socket")
    assert line["peer"].startswith("127.0.0.1:") and await listening.echo(peer, "x") == "x"


async def tls_pair(
    stack: Any, folder: Any, services: Callable[[], Any], name: str = "ps0"
) -> tuple[Agent, Any]:
    """An agent that serves with TLS, and a peer of another that has reached it."""
    certificates.init(folder)
    security = [
        Security.from_files(certificates.issue(folder, role, holder))
        for role, holder in (("parameter-server", name), ("worker", "w0"))
    ]
    options = AgentOptions(lanes=frozenset({Lane.INLINE, Lane.STRIPED}))
    server = Agent(
        PeerInfo("ps0", "parameter-server", "", 1), security=security[0], services=services(), options=options
    )
    await stack.enter_async_context(server)
    bound = await stack.enter_async_context(
        serve(server.handlers(), security=security[0], options=ServeOptions(announce=False))
    )
    server.listen(bound.host)
    worker = Agent(PeerInfo("w0", "worker", "", 2), security=security[1], options=options)
    await stack.enter_async_context(worker)
    peer = await worker.connect(
        [bound.address], name="ps0", role="parameter-server", deadline=Deadline.after(10)
    )
    return server, peer


@pytest.mark.parametrize("name", ["ps0", "*"])
async def test_with_tls_sockets_are_tls_too(office: Any, tmp_path: Any, name: str) -> None:
    server, peer = await tls_pair(office.stack, tmp_path / "tls", lambda: [office.desk], name)
    await office.until(lambda: moved(peer) and moved(server.peers[0]))
    assert isinstance(peer._port.link._shortcut._socket, TlsSocket)
    assert await office.echo(peer, "x") == "x"
    parts = [os.urandom(size) for size in SIZES]
    _, got = await office.send(peer, "Mirror", parts)
    assert [bytes(part) for part in got] == parts
    assert all(isinstance(each._socket, TlsSocket) for each in peer.bulk._sockets)
    assert peer.bulk._sockets


async def test_a_socket_of_another_member_is_refused(office: Any, tmp_path: Any) -> None:
    server, peer = await tls_pair(office.stack, tmp_path / "tls", lambda: [office.desk])
    await office.until(lambda: moved(peer))
    other = Security.from_files(certificates.issue(tmp_path / "tls", "worker", "w1"))
    key, port = server.peers[0].segments.key, server._home.socket_port
    context, name = other.socket_context(server_side=False), other.server_name("parameter-server", "ps0")
    with capture_logs() as lines, pytest.raises((WireError, PermissionDenied, PeerLost)):
        await tcp.connect(
            "127.0.0.1", port, key, pack_number(1, stripe=True), context=context, server_name=name, seconds=5
        )
    assert "w1" in audited(lines)[0]["reason"]
    assert not server.peers[0].bulk._sockets
