"""The heartbeat's thread: renews, survives outages, stops at once, tells of an eviction."""

import asyncio
import threading
import time
from collections.abc import Callable

import pytest

from psframework.errors import Evicted
from psframework.membership import heartbeat
from psframework.membership.heartbeat import Heartbeat
from psframework.membership.lease import HeldLease
from psframework.membership.line import Addresses, Terms
from psframework.membership.registry import JoinSpec
from psframework.rpc.deadline import Deadline, boottime
from psframework.rpc.security.credentials import Security


class Beating:
    """A heartbeat with what it reports."""

    def __init__(self, addresses: list[str], incarnation: int, lease_s: float = 1.0) -> None:
        self.evicted: list[Evicted] = []
        self.terms = Terms()
        self.lease = HeldLease(lease_s, boottime() - lease_s)
        self.heartbeat = Heartbeat(
            Addresses(addresses),
            Security.plaintext(),
            self.terms,
            incarnation=incarnation,
            lease=self.lease,
            tick=lambda: 7,
            on_evicted=self.evicted.append,
        )


async def until(condition: Callable[[], object], seconds: float = 10.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - a thread changes it
            await asyncio.sleep(0.01)


def held(beating: Beating) -> bool:
    return beating.lease.remaining(boottime()) > 0


@pytest.fixture
async def member(served):
    return await served.coordinator.join(JoinSpec("worker", lease_s=1.0), Deadline.after(5))


async def test_renews_until_it_is_stopped(served, member) -> None:
    beating = Beating(served.addresses, member.incarnation)
    beating.heartbeat.start()
    await until(lambda: held(beating))
    assert beating.terms.highest == 1 and served.coordinator.registry.leases._leases[1].tick == 7
    beating.heartbeat.stop()
    assert not any(thread.name == "psf-heartbeat" for thread in threading.enumerate())
    assert beating.evicted == []


async def test_passes_over_addresses_that_refuse(served, member, unused_address: str) -> None:
    beating = Beating([unused_address, *served.addresses], member.incarnation)
    beating.heartbeat.start()
    await until(lambda: held(beating))
    beating.heartbeat.stop()


async def test_tells_of_an_eviction_and_ends(served) -> None:
    beating = Beating(served.addresses, 99)
    beating.heartbeat.start()
    await until(lambda: beating.evicted)
    assert "99" in str(beating.evicted[0])
    await until(lambda: not beating.heartbeat._thread.is_alive())
    beating.heartbeat.stop()


async def test_kick_renews_at_once(served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        heartbeat, "renewal_interval", lambda lease_seconds: 60.0
    )  # left alone: not in this test
    member = await served.coordinator.join(JoinSpec("worker", lease_s=60.0), Deadline.after(5))
    beating = Beating(served.addresses, member.incarnation, lease_s=60.0)
    beating.heartbeat.start()
    await until(lambda: held(beating))
    lease = served.coordinator.registry.leases._leases[member.incarnation]
    before = lease.renewed_at
    beating.heartbeat.kick()
    await until(lambda: lease.renewed_at > before)
    beating.heartbeat.stop()


async def test_stops_at_once_while_a_renewal_hangs() -> None:
    async with await asyncio.start_server(lambda reader, writer: reader.read(), "127.0.0.1", 0) as silent:
        port = silent.sockets[0].getsockname()[1]
        beating = Beating([f"127.0.0.1:{port}"], 1, lease_s=60.0)
        beating.heartbeat.start()
        await until(lambda: beating.heartbeat._call is not None)
        began = time.monotonic()
        await asyncio.to_thread(beating.heartbeat.stop)
        assert time.monotonic() - began < 2
