"""The dialling side on broken connections: sessions resume, each call runs once, the dead are noticed."""

import asyncio
import sys
import time
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from google.protobuf.wrappers_pb2 import StringValue

from psframework.errors import PeerLost, PermissionDenied, PsfError, WireError
from psframework.rpc.call import PeerInfo
from psframework.rpc.deadline import Deadline
from psframework.rpc.options import server_options
from psframework.rpc.security.credentials import Security
from psframework.rpc.session import handshake
from psframework.rpc.session.accept import SERVICE
from psframework.rpc.session.frames import LinkState, Welcome
from psframework.testing.faults import FaultyLink


@pytest.fixture
async def link(office: Any) -> AsyncIterator[FaultyLink]:
    async with FaultyLink(office.address) as proxy:
        yield proxy


@pytest.mark.parametrize("lanes", ["inline,striped", "inline,striped,shm"])
async def test_a_cut_connection_resumes_and_each_call_runs_once(
    office: Any, link: FaultyLink, lanes: str
) -> None:
    peer = await office.peer(link.address, options=office.options(lanes))
    answers: list[str] = []

    async def worker(number: int) -> None:
        for index in range(40):
            answer = await office.echo(peer, f"{number}/{index}", "EchoLater")
            answers.append(answer)

    workers = [asyncio.create_task(worker(number)) for number in range(8)]
    for cuts, count in enumerate((60, 140, 220), start=1):
        await office.until(lambda count=count: len(answers) >= count)
        await office.until(lambda cuts=cuts: link.accepted == cuts)  # what was cut before is there again
        link.cut()
    await asyncio.gather(*workers)
    wanted = sorted(f"{number}/{index}" for number in range(8) for index in range(40))
    assert sorted(answers) == wanted
    assert sorted(office.desk.ran) == wanted
    await office.until(lambda: link.accepted == 4)  # on one host answers may come before the cut is noticed
    await office.until(lambda: peer.statistics() == {"made": 0, "served": 0, "kept": 0})


async def test_a_reply_that_was_lost_with_the_connection_comes_again(office: Any, link: FaultyLink) -> None:
    peer = await office.peer(link.address, options=office.options("inline,striped"))
    task = asyncio.create_task(office.echo(peer, "x", "Hold"))
    await office.desk.started.wait()
    link.refuse()
    office.desk.gate.set()
    await office.until(lambda: office.agent.peers[0].statistics()["served"] == 0)
    assert not task.done()
    link.heal()
    assert await task == "x"
    assert office.desk.ran == ["x"]


async def test_calls_made_while_the_connection_is_away_are_sent_later(office: Any, link: FaultyLink) -> None:
    peer = await office.peer(link.address)
    link.refuse()
    await office.until(lambda: "reconnecting" in repr(peer))
    task = asyncio.create_task(office.echo(peer, "later"))
    await asyncio.sleep(0)
    link.heal()
    assert await task == "later"


async def test_what_can_not_be_resumed_is_lost_after_a_second(office: Any, link: FaultyLink) -> None:
    peer = await office.peer(link.address)
    running = asyncio.create_task(office.echo(peer, "x", "Hold"))
    await office.desk.started.wait()
    start = time.monotonic()
    link.refuse()
    await office.until(lambda: "reconnecting" in repr(peer))
    unsent = asyncio.create_task(office.echo(peer, "y"))
    with pytest.raises(PeerLost) as caught:
        await running
    assert caught.value.may_have_run and caught.value.peer == "office" and caught.value.reason == "closed"
    with pytest.raises(PeerLost) as never:
        await unsent
    assert not never.value.may_have_run
    assert time.monotonic() - start > 0.8
    await office.until(lambda: office.desk.cancelled == ["x"])
    assert office.agent.peers == ()


async def test_a_restarted_peer_is_another_one(office: Any, link: FaultyLink) -> None:
    """Somebody else answers at the address: the session is not there, and the loss is told at once."""
    peer = await office.peer(link.address, options=office.options(resume_seconds=60.0))
    running = asyncio.create_task(office.echo(peer, "x", "Hold"))
    await office.desk.started.wait()
    office.agent._acceptor._sessions.clear()
    link.cut()
    with pytest.raises(PeerLost, match="does not know this session") as caught:
        async with asyncio.timeout(10):
            await running
    assert caught.value.reason == "refused"


VICTIM = """
import asyncio, grpc
from google.protobuf.wrappers_pb2 import StringValue
from psframework.rpc.session.agent import Agent
from psframework.rpc.call import PeerInfo
from psframework.rpc.options import server_options
from psframework.rpc.security.credentials import Security
from psframework.rpc.service import Method

class Killed:
    name = "test.Killed"
    def methods(self):
        return [Method("Wait", StringValue, StringValue, self.wait)]
    async def wait(self, request, call):
        print("running", flush=True)
        await asyncio.sleep(60)

async def main():
    info = PeerInfo("victim", "server", "", 5)
    async with Agent(info, security=Security.plaintext(), services=[Killed()]) as agent:
        server = grpc.aio.server(options=server_options())
        server.add_generic_rpc_handlers(tuple(agent.handlers()))
        print(server.add_insecure_port("127.0.0.1:0"), flush=True)
        await server.start()
        await server.wait_for_termination()

asyncio.run(main())
"""


async def test_a_killed_process_is_lost(office: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PSF_LANES", "inline,striped")
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", VICTIM, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        port = int(await process.stdout.readline())
        agent = await office.client()
        peer = await agent.connect(
            [f"127.0.0.1:{port}"], name="victim", role="server", deadline=Deadline.after(20)
        )
        call = asyncio.create_task(
            peer.call("/test.Killed/Wait", StringValue(), StringValue, deadline=Deadline.NEVER)
        )
        assert await process.stdout.readline() == b"running\n"
        process.kill()
        with pytest.raises(PeerLost, match="victim") as caught:
            async with asyncio.timeout(10):
                await call
        assert caught.value.may_have_run
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def test_addresses_are_tried_in_order(office: Any) -> None:
    agent = await office.client()
    closed = "127.0.0.1:1"
    peer = await agent.connect(
        [closed, office.address], name="office", role="server", deadline=Deadline.after(10)
    )
    assert await office.echo(peer, "x") == "x"


async def test_nobody_there_is_told_within_the_deadline(office: Any) -> None:
    agent = await office.client()
    start = time.monotonic()
    with pytest.raises(PeerLost, match=r"can't reach office at 127.0.0.1:1") as caught:
        await agent.connect(["127.0.0.1:1"], name="office", role="server", deadline=Deadline.after(0.5))
    assert not caught.value.may_have_run
    assert 0.3 < time.monotonic() - start < 10


async def test_a_listener_that_never_answers_is_told_within_the_deadline(office: Any) -> None:
    async def swallow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    server = await asyncio.start_server(swallow, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    agent = await office.client()
    with pytest.raises(PsfError):
        async with asyncio.timeout(10):
            await agent.connect([f"127.0.0.1:{port}"], name="x", role="server", deadline=Deadline.after(0.5))
    server.close()


@pytest.mark.parametrize(
    ("name", "role", "incarnation", "words"),
    [
        ("somebody", "server", None, "is not here"),
        ("office", "worker", None, "is not here"),
        ("office", "server", 99_999, "has restarted"),
    ],
)
async def test_another_member_at_the_address(
    office: Any, name: str, role: str, incarnation: int | None, words: str
) -> None:
    agent = await office.client()
    with pytest.raises(PeerLost, match=words):
        await agent.connect(
            [office.address], name=name, role=role, incarnation=incarnation, deadline=Deadline.after(5)
        )


async def test_a_server_without_a_call_stream(office: Any) -> None:
    server = grpc.aio.server(options=server_options())
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    agent = await office.client()
    with pytest.raises(PsfError):
        await agent.connect([f"127.0.0.1:{port}"], name="x", role="server", deadline=Deadline.after(5))
    await server.stop(0)


async def test_a_wrong_token_is_refused(office: Any) -> None:
    office.agent._acceptor._security = Security.plaintext("secret" * 8)
    with pytest.raises((PermissionDenied, WireError), match="token"):
        await office.peer()


async def test_the_declared_dead_stay_away_when_the_connection_heals(office: Any, link: FaultyLink) -> None:
    agent = await office.client()
    peer = await office.dial(agent, link.address)
    link.refuse()
    await office.until(lambda: "reconnecting" in repr(peer))
    agent.lost("office", peer.info.incarnation)
    link.heal()
    await office.until(lambda: not agent._tasks)
    await office.until(lambda: not office.agent.peers)
    assert "lost" in repr(peer)


async def test_a_call_does_not_say_that_it_may_have_run_where_it_never_left(office: Any) -> None:
    agent = await office.client()
    with pytest.raises(PeerLost, match="has restarted") as caught:  # at the second attempt to connect
        await agent.connect(
            ["127.0.0.1:1", office.address],
            name="office",
            role="server",
            incarnation=99_999,
            deadline=Deadline.after(5),
        )
    assert not caught.value.may_have_run


class Impostor:
    """A server that welcomes everybody as somebody else."""

    def __init__(self, welcome: Welcome) -> None:
        self.welcome = welcome

    async def connect(self, _: object, context: Any) -> None:
        await context.read()
        await context.write(handshake.welcome_message(self.welcome))
        await context.read()


@pytest.mark.parametrize(
    ("sender", "received", "error"),
    [
        (PeerInfo("boss-0", "server", "", 5), 0, PeerLost),
        (PeerInfo("office", "boss", "", 5), 0, PeerLost),
        (PeerInfo("office", "server", "", 6), 0, PeerLost),
        (PeerInfo("office", "server", "", 5), 9, WireError),
    ],
)
async def test_an_answer_must_come_from_whom_was_dialled(
    office: Any, sender: PeerInfo, received: int, error: type[PsfError]
) -> None:
    state = LinkState(window=1 << 20, received=received)
    impostor = Impostor(Welcome(sender=handshake.identity_of(sender), state=state))
    server = grpc.aio.server(options=server_options())
    methods = {"Connect": grpc.stream_stream_rpc_method_handler(impostor.connect)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, methods),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    agent = await office.client()
    with pytest.raises(error):
        await agent.connect(
            [f"127.0.0.1:{port}"], name="office", role="server", incarnation=5, deadline=Deadline.after(5)
        )
    assert agent.peers == ()
    await server.stop(0)


async def test_a_message_over_the_other_sides_limit_ends_the_session(office: Any) -> None:
    server = grpc.aio.server(options=server_options(max_message=100_000))
    server.add_generic_rpc_handlers(tuple(office.agent.handlers()))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    peer = await office.peer(f"127.0.0.1:{port}", options=office.options("inline"))
    assert await office.echo(peer, "a") == "a"
    with pytest.raises(PeerLost, match="larger"):
        await office.echo(peer, "x" * 200_000)
    await server.stop(0)
