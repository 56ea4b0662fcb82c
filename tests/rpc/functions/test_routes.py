"""From names to sessions: in order while one is opened, deadlines of what waits, dead and moved members."""

import asyncio
import gc
import socket
from contextlib import AsyncExitStack

import called
import numpy as np
import pytest
from crew import Crew, until

from psframework.errors import DeadlineExceeded, PeerLost, ResourceExhausted
from psframework.rpc.functions import routes
from psframework.rpc.functions.routes import Address
from psframework.rpc.limits import AgentOptions
from psframework.rpc.session import dial
from psframework.rpc.session.peer import Peer
from psframework.testing.workers import worker


def nowhere() -> str:
    """An address at which nobody listens, and nobody else will."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{taken.getsockname()[1]}"


async def test_what_waits_for_a_session_leaves_in_order(crew: Crew) -> None:
    ann, _ = await crew.hire("ann"), await crew.hire("bob")
    futures = []
    for index in range(50):
        futures.append(ann.remote.rpc_async("bob", called.hold, (index, 0.0)))
        await asyncio.sleep(0)
    assert await asyncio.gather(*futures) == list(range(50))
    assert called.ran == list(range(50))
    assert len(ann.agent.peers) == 1


async def test_what_waits_has_its_own_deadline_and_can_be_cancelled(crew: Crew) -> None:
    ann = await crew.hire("ann")
    crew.book.known["bob"] = Address([nowhere()], "worker", 77)
    short = ann.remote.rpc_async("bob", called.add, (1, 2), timeout=0.1)
    endless = ann.remote.rpc_async("bob", called.add, (1, 2), timeout=0)
    given_up = ann.remote.rpc_async("bob", called.add, (1, 2))
    assert ann.remote.outstanding() == {"bob": 3}
    given_up.cancel()
    with pytest.raises(DeadlineExceeded, match="no connection to bob"):
        await short
    assert ann.remote.outstanding() == {"bob": 1}
    ann.agent.lost("bob", 77)  # as membership would say
    with pytest.raises(PeerLost) as lost:
        await endless
    assert lost.value.reason == "lease" and not lost.value.may_have_run


@pytest.mark.parametrize("looks", [0, 1, 2, 5])
async def test_what_waits_for_a_session_ends_with_the_agent(crew: Crew, looks: int) -> None:
    ann, _ = await crew.hire("ann"), await crew.hire("bob")
    waits = ann.remote.rpc_async("bob", called.add, (1, 2), timeout=0)
    for _ in range(looks):
        await asyncio.sleep(0)
    await ann.agent.close()
    for late in (waits, ann.remote.rpc_async("bob", called.add, (1, 2), timeout=0)):
        async with asyncio.timeout(10):
            with pytest.raises(PeerLost, match=r"ended its connections|closed"):
                await late
    assert ann.remote.outstanding() == {}


async def test_an_early_deadline_does_not_end_what_may_wait_longer(crew: Crew) -> None:
    ann, _ = await crew.hire("ann"), await crew.hire("bob")
    there = crew.book.known["bob"]
    with socket.socket() as silent:  # takes connections, and says nothing
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        crew.book.known["bob"] = Address([address], there.role, there.incarnation)
        short = ann.remote.rpc_async("bob", called.add, (1, 2), timeout=0.2)
        await asyncio.sleep(0.05)
        long = ann.remote.rpc_async("bob", called.add, (1, 2), timeout=20)
        crew.book.known["bob"] = there
        with pytest.raises(DeadlineExceeded):
            await short
        assert await long == 3


async def test_a_member_that_began_another_life_is_found_again(crew: Crew) -> None:
    ann, bob = await crew.hire("ann"), await crew.hire("bob")
    await ann.remote.rpc_async("bob", called.add, (1, 2))
    before = bob.agent.identity.incarnation
    await bob.agent.close()
    await until(lambda: ann.agent.peer_for("bob") is None)
    again = await crew.hire("bob")
    assert again.agent.identity.incarnation != before
    assert await ann.remote.rpc_async("bob", called.add, (1, 2)) == 3


async def test_each_caller_gets_an_exception_of_its_own(crew: Crew) -> None:
    ann = await crew.hire("ann")
    futures = [ann.remote.rpc_async("nobody", called.add) for _ in range(3)]
    errors = await asyncio.gather(*futures, return_exceptions=True)
    assert len(set(map(id, errors))) == 3


async def test_who_a_message_goes_to(crew: Crew) -> None:
    ann, bob = await crew.hire("ann"), await crew.hire("bob")
    routes = ann.remote.routes
    info = routes.info("bob")
    assert info is not None and info.incarnation == bob.agent.identity.incarnation
    assert routes.info("ann") == ann.agent.identity and routes.info("nobody") is None


async def test_whoever_can_not_be_reached_is_named_with_address_and_cause(
    crew: Crew, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A wrong --advertise, or a firewall: the member lives, and nobody gets there."""
    monkeypatch.setattr(routes, "DIAL_SECONDS", 1.5)
    monkeypatch.setattr(dial, "TELL_SECONDS", 0.5)
    ann, address = await crew.hire("ann"), nowhere()
    crew.book.known["bob"] = Address([address], "worker", 77)
    short = ann.remote.rpc_async("bob", called.add, (1, 2), timeout=0.7)
    endless = ann.remote.rpc_async("bob", called.add, (1, 2), timeout=0)
    with pytest.raises(DeadlineExceeded, match=rf"no connection to bob .*{address}.*[Cc]onnection refused"):
        await short
    async with asyncio.timeout(10):
        with pytest.raises(PeerLost, match=rf"bob at {address}.*[Cc]onnection refused") as lost:
            await endless
    assert not lost.value.may_have_run and not ann.remote.outstanding()
    told = [record.getMessage() for record in caplog.records if address in record.getMessage()]
    assert 1 <= len(told) <= 3 and "refused" in told[0]


async def test_members_that_are_gone_leave_nothing(crew: Crew) -> None:
    """A worker that calls back whoever came by, each under a name of its own."""
    bob = await crew.hire("bob")
    for number in range(5):
        async with AsyncExitStack() as stack:
            name = f"visitor-{number}"
            made = await stack.enter_async_context(worker(name, crew.book, enter=lambda: None))
            assert await made.remote.rpc_async("bob", called.add, (1, 2)) == 3
            assert await bob.remote.rpc_async(name, called.add, (1, 2)) == 3
        await until(lambda: not bob.agent.peers)
    gc.collect()
    assert not bob.remote.routes._known and not bob.agent._opening
    mine = [peer for peer in gc.get_objects() if isinstance(peer, Peer) and "visitor" in peer.info.name]
    assert not mine


async def test_what_waits_for_a_session_is_bounded(crew: Crew) -> None:
    ann = await crew.hire("ann", options=AgentOptions(backlog_bytes=4 << 20))
    await crew.hire("bob")
    sent = [ann.remote.rpc_async("bob", called.echo, (np.full(1 << 20, n, np.uint8),)) for n in range(8)]
    small = ann.remote.rpc_async("bob", called.add, (1, 2))
    arrived = await asyncio.gather(*sent, return_exceptions=True)
    assert [array[0] for array in arrived[:3]] == [0, 1, 2]
    for error in arrived[4:]:
        assert isinstance(error, ResourceExhausted) and "wait for a connection to bob" in str(error)
    assert await small == 3
