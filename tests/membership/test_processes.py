"""Members and coordinators as real processes: killed, stopped, blocked, restarted."""

import asyncio
import signal
import time
from pathlib import Path

import pytest

from psframework.membership.lease import Reason
from psframework.membership.view import Member
from psframework.rpc.deadline import Deadline


def soon() -> Deadline:
    return Deadline.after(20)


class Losses:
    """When which member departed, and why."""

    def __init__(self, served) -> None:
        self.reasons: dict[str, Reason] = {}
        self.times: dict[str, float] = {}
        served.coordinator.on_departure(self.note)
        self.served = served

    def note(self, member: Member, reason: Reason) -> None:
        self.reasons[member.name], self.times[member.name] = reason, time.monotonic()

    async def of(self, name: str) -> tuple[Reason, float]:
        async with asyncio.timeout(20):
            while name not in self.reasons:
                await self.served.coordinator.ticked.wait()
        return self.reasons[name], self.times[name]


async def test_kill_9_is_noticed_long_before_the_lease_ends(served, processes) -> None:
    losses = Losses(served)
    child = await processes.member(served.addresses, lease_s=60.0)
    await child.expect("joined", name="worker-0")
    async with served.join("worker", lease_s=60.0) as other:
        heard = []
        other.on_lost(lambda member, reason: heard.append((member.name, reason)))
        child.signal(signal.SIGKILL)
        reason, _ = await losses.of("worker-0")
        assert reason is Reason.CLOSED
        await other.wait_for(lambda view: not view.find("worker-0"), soon())
        assert heard == [("worker-0", Reason.CLOSED)]


async def test_a_restarted_process_gets_its_name_back(served, processes) -> None:
    child = await processes.member(served.addresses, name="w", lease_s=60.0)
    old = await child.expect("joined")
    child.signal(signal.SIGKILL)
    began = time.monotonic()
    again = await processes.member(served.addresses, name="w", lease_s=60.0)
    new = await again.expect("joined", name="w")
    assert new["incarnation"] > old["incarnation"]
    assert time.monotonic() - began < 10
    assert [m.incarnation for m in served.coordinator.view.members] == [new["incarnation"]]


async def test_a_stopped_process_is_fenced_within_its_lease_and_one_second(served, processes) -> None:
    losses = Losses(served)
    child = await processes.member(served.addresses, lease_s=1.5)
    joined = await child.expect("joined")
    stopped = time.monotonic()
    child.signal(signal.SIGSTOP)
    reason, at = await losses.of("worker-0")
    assert reason is Reason.LEASE and 1.0 < at - stopped < 2.5
    child.signal(signal.SIGCONT)
    await child.expect("evicted")
    child.tell("barrier", "b", 1, 5)
    with pytest.raises(AssertionError, match="Evicted"):
        await child.expect("through")
    child.tell("rejoin")
    again = await child.expect("joined", name="worker-0")
    assert again["incarnation"] > joined["incarnation"]
    assert await child.end() == 0
    assert served.coordinator.view.members == ()


async def _block(served, processes, lease_s: float, seconds: float) -> None:
    losses = Losses(served)
    child = await processes.member(served.addresses, lease_s=lease_s)
    joined = await child.expect("joined")
    child.tell("block", seconds)
    await child.expect("unblocked", timeout=seconds + 20, holds_lease=True)
    assert losses.reasons == {}
    child.tell("status")
    assert (await child.expect("status"))["incarnation"] == joined["incarnation"]
    assert await child.end() == 0


async def test_a_blocked_loop_keeps_its_lease(served, processes) -> None:
    await _block(served, processes, 1.5, 3.0)


@pytest.mark.soak
async def test_a_loop_blocked_for_ten_seconds_keeps_its_lease_of_five(served, processes) -> None:
    await _block(served, processes, 5.0, 10.0)


async def test_members_carry_on_over_kill_9_of_the_coordinator(processes, tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    first = await processes.coordinator(path)
    serving = await first.expect("serving")
    addresses = [f"127.0.0.1:{serving['port']}"]
    children = [await processes.member(addresses, job="j", lease_s=3.0) for _ in range(3)]
    joined = [await child.expect("joined") for child in children]
    children[0].tell("put", "key", "kept")
    written = await children[0].expect("written")
    for child in children[:2]:
        child.tell("barrier", "b", 3, 20)  # in progress, or about to be, when the coordinator dies
        child.tell("status")
        await child.expect("status")
    first.signal(signal.SIGKILL)
    await first.process.wait()
    second = await processes.coordinator(path, serving["port"])
    assert (await second.expect("serving"))["term"] == serving["term"] + 1
    children[2].tell("barrier", "b", 3, 20)
    for child in children:
        names = (await child.expect("through"))["names"]
        assert sorted(names) == ["worker-0", "worker-1", "worker-2"]
    children[0].tell("put", "key2", "x")
    assert (await children[0].expect("written"))["revision"] > written["revision"]
    for child, before in zip(children, joined, strict=True):
        child.tell("status")
        status = await child.expect("status", lease=True)
        assert status["incarnation"] == before["incarnation"] and status["term"] == serving["term"] + 1
        assert not any(event["event"] in ("lost", "evicted") for event in child.events)
    for child in [*children, second]:
        assert await child.end() == 0


async def test_a_second_coordinator_on_the_same_store_is_refused(processes, tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    first = await processes.coordinator(path)
    await first.expect("serving")
    second = await processes.coordinator(path)
    assert await second.process.wait() != 0
    assert await first.end() == 0
