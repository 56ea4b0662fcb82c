"""Memberships against a real coordinator: joining, views, barriers, eviction, a coordinator that restarts."""

import asyncio
import threading
from pathlib import Path

import pytest

from psframework.errors import (
    ArgumentError,
    ConfigurationError,
    DeadlineExceeded,
    Evicted,
    NameTaken,
    PeerLost,
    RendezvousTimeout,
)
from psframework.membership.client import JoinRequest, Membership
from psframework.membership.lease import Reason
from psframework.membership.store import SqliteStore
from psframework.rpc.deadline import Deadline


def soon() -> Deadline:
    return Deadline.after(10)


async def test_join_and_leave(served) -> None:
    async with served.join("worker", advertise=("10.0.0.1:5",), labels={"gpu": "0"}) as first:
        assert first.member.name == "worker-0" and first.member.addresses == ("10.0.0.1:5",)
        assert first.member.labels["gpu"] == "0" and first.member.labels["pid"]
        assert first.find("worker-0") == first.member and first.term == 1 and first.holds_lease
        async with served.join("worker") as second:
            assert second.member.name == "worker-1"
            view = await first.wait_for(lambda view: view.find("worker-1"), soon())
            assert (
                [m.name for m in view.members]
                == ["worker-0", "worker-1"]
                == [m.name for m in first.members(role="worker")]
            )
            lost = []
            first.on_lost(lambda member, reason: lost.append((member.name, reason)))
        await first.wait_for(lambda view: not view.find("worker-1"), soon())
        assert lost == [("worker-1", Reason.LEFT)]
    assert served.coordinator.view.members == ()


async def test_the_newcomer_is_refused_and_the_holder_undisturbed(served) -> None:
    async with served.join("worker", name="w", lease_s=1.0) as holder:
        with pytest.raises(NameTaken, match="'w' belongs to a live member"):
            async with served.join("worker", name="w"):
                pass
        assert holder.holds_lease and served.coordinator.view.members == (holder.member,)


async def test_thirty_two_join_at_once(start, tmp_path: Path) -> None:
    async with start(SqliteStore(tmp_path / "store.db")) as served:
        began = asyncio.get_running_loop().time()
        members = [served.join("trainer", job="default") for _ in range(32)]
        await asyncio.gather(*(member.__aenter__() for member in members))
        took = asyncio.get_running_loop().time() - began
        await members[0].wait_for(lambda view: len(view.members) == 32, soon())
        names = await asyncio.gather(*(member.barrier("start", 32, soon()) for member in members))
        assert len({tuple(sorted(each)) for each in names}) == 1 and len(names[0]) == 32
        await asyncio.gather(*(member.leave() for member in members))
        assert {member.member.name for member in members} == {f"trainer-{n}" for n in range(32)}
        assert len({member.member.incarnation for member in members}) == 32
        assert took < 5


async def test_twenty_times_in_one_process(served) -> None:
    before = threading.active_count()
    incarnations = set()
    for _ in range(20):
        async with served.join("worker", name="w") as member:
            incarnations.add(member.member.incarnation)
    assert len(incarnations) == 20
    assert threading.active_count() <= before + 1


async def test_an_evicted_member_hears_it_and_rejoins(served) -> None:
    async with served.join("worker", lease_s=60.0) as member, served.join("worker") as other:
        old, heard, lost = member.member, asyncio.Event(), []
        member.on_evicted(lambda error: heard.set())
        other.on_lost(lambda gone, reason: lost.append((gone, reason)))
        await served.coordinator.leave(old.incarnation)  # as a fence does
        await asyncio.wait_for(heard.wait(), 10)
        with pytest.raises(Evicted):
            member.check()
        with pytest.raises(Evicted):
            await member.wait_for(lambda view: False, soon())
        with pytest.raises(Evicted):
            await member.barrier("b", 1, soon())
        with pytest.raises(Evicted):
            await member.kv.put("k", b"")
        again = await member.rejoin()
        assert again.name == old.name and again.incarnation > old.incarnation and member.holds_lease
        await other.wait_for(lambda view: view.get(again.incarnation), soon())
        assert lost == [(old, Reason.LEFT)]
        await member.kv.put("k", b"")


async def test_a_restarted_coordinator_loses_nothing(start, tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    async with start(SqliteStore(path)) as served:
        members = [served.join("worker", job="j", lease_s=3.0) for _ in range(3)]
        for member in members:
            await member.__aenter__()
        first, second, third = members
        await first.kv.put("k", b"kept")
        number = served.coordinator.view.number
        incarnations = [member.member.incarnation for member in members]
        waiting = asyncio.gather(first.barrier("b", 3, soon()), second.barrier("b", 3, soon()))
        while len(served.coordinator.barriers._futures) < 2:
            await served.coordinator.ticked.wait()
    losses = []
    first.on_lost(lambda *lost: losses.append(lost))
    async with start(SqliteStore(path), port=served.port) as served:
        assert served.coordinator.term == 2 and served.coordinator.view.number == number
        names = await third.barrier("b", 3, soon())
        assert sorted(names) == ["worker-0", "worker-1", "worker-2"]
        assert await waiting == [names, names] or [sorted(n) for n in await waiting] == [sorted(names)] * 2
        entry = await second.kv.get("k")
        assert entry is not None and entry.value == b"kept"
        assert [member.member.incarnation for member in members] == incarnations
        assert [m.incarnation for m in served.coordinator.view.members] == incarnations
        assert first.term == 2 and all(member.holds_lease for member in members) and losses == []
        async with served.join("worker") as fourth:
            assert fourth.member.incarnation > max(incarnations)
            await first.wait_for(lambda view: view.find("worker-3"), soon())
        for member in members:
            await member.leave()


async def test_barrier_timeout_names_who_is_missing(served) -> None:
    async with served.join("t", job="j") as first, served.join("t", job="j") as second, served.join("s"):
        with pytest.raises(RendezvousTimeout, match=r"1 of 3 came in time \(t-0\); .*missing: t-1") as caught:
            await first.barrier("start", 3, Deadline.after(0.3))
        assert caught.value.missing == ("t-1",)
        names = await asyncio.gather(first.barrier("start", 2, soon()), second.barrier("start", 2, soon()))
        assert names[0] == names[1]


async def test_a_member_lost_in_a_barrier_fails_the_others(served) -> None:
    async with served.join("t", job="j") as first, served.join("t", job="j") as second:
        waiting = asyncio.ensure_future(second.barrier("b", 3, soon()))
        while not served.coordinator.barriers._futures:
            await served.coordinator.ticked.wait()
        other = asyncio.ensure_future(first.barrier("b", 3, soon()))
        while len(served.coordinator.barriers._futures) < 2:
            await served.coordinator.ticked.wait()
        await served.coordinator.leave(second.member.incarnation)
        with pytest.raises(PeerLost, match="t-1 was lost") as caught:
            await other
        assert caught.value.peer == "t-1"
        with pytest.raises(Evicted):
            await waiting


async def test_a_cancelled_barrier_can_be_entered_again(served) -> None:
    async with served.join("t", job="j") as first, served.join("t", job="j") as second:
        waiting = asyncio.ensure_future(first.barrier("b", 2, soon()))
        while not served.coordinator.barriers._futures:
            await served.coordinator.ticked.wait()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        while served.coordinator.barriers._futures:
            await served.coordinator.ticked.wait()
        with pytest.raises(RendezvousTimeout):
            await second.barrier("b", 2, Deadline.after(0.2))
        await asyncio.gather(first.barrier("b", 2, soon()), second.barrier("b", 2, soon()))


async def test_several_addresses(served, unused_address: str) -> None:
    addresses = [unused_address, *served.addresses]
    async with Membership.join(addresses, JoinRequest("worker", lease_s=1.0), timeout=10) as member:
        await member.kv.put("k", b"")
        assert member.holds_lease


async def test_nobody_there(unused_address: str) -> None:
    with pytest.raises(DeadlineExceeded, match=f"no coordinator at {unused_address} answered Join"):
        async with Membership.join([unused_address], JoinRequest("worker"), timeout=0.5):
            pass
    with pytest.raises(ConfigurationError, match="no coordinator address"):
        Membership.join([], JoinRequest("worker"))


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (JoinRequest("a b"), "role 'a b'"),
        (JoinRequest("w", name=""), "name ''"),
        (JoinRequest("w", name="x" * 128), "name"),
        (JoinRequest("w", job="ö"), "job"),
        (JoinRequest("w", lease_s=0.0), "lease"),
    ],
)
async def test_refused_before_anything_is_sent(request_: JoinRequest, words: str) -> None:
    with pytest.raises(ArgumentError, match=words):
        async with Membership.join(["127.0.0.1:1"], request_):
            pass


async def test_leaving_a_coordinator_that_is_gone_does_not_raise(start, monkeypatch) -> None:
    monkeypatch.setattr("psframework.membership.client.LEAVE_SECONDS", 0.3)
    async with start() as served:
        member = await served.join("worker").__aenter__()
    began = asyncio.get_running_loop().time()
    await member.leave()
    await member.leave()
    assert asyncio.get_running_loop().time() - began < 5
