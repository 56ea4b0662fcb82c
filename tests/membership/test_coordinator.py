"""The coordinator as an object: hooks, jobs, restarts, a store that fails, suspension."""

import asyncio
from collections.abc import Iterable

import pytest

from psframework.errors import ConfigurationError, NameTaken, ResourceExhausted
from psframework.membership.coordinator import Coordinator
from psframework.membership.lease import Reason
from psframework.membership.registry import JoinSpec
from psframework.membership.store import MemoryStore, SqliteStore, Write
from psframework.rpc.deadline import Deadline


def soon() -> Deadline:
    return Deadline.after(10)


async def until(coordinator: Coordinator, condition) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await coordinator.ticked.wait()


async def test_hooks_hear_of_joins_and_departures_and_jobs() -> None:
    heard: list[object] = []
    async with Coordinator(MemoryStore()) as coordinator:
        coordinator.on_join(lambda member: 1 / 0)  # a broken hook keeps nobody from anything
        coordinator.on_join(lambda member: heard.append(member.name))
        coordinator.on_departure(lambda member, reason: heard.append((member.name, reason)))
        coordinator.on_job_end(heard.append)
        assert not coordinator.has_job("j")
        first = await coordinator.join(JoinSpec("t", job="j", lease_s=0.5), soon())
        await coordinator.join(JoinSpec("t", job="j", lease_s=0.5), soon())
        assert coordinator.has_job("j")
        await coordinator.leave(first.incarnation)
        await coordinator.leave(first.incarnation)
        await until(coordinator, lambda: "j" in heard)
        assert not coordinator.has_job("j")
    assert heard == ["t-0", "t-1", ("t-0", Reason.LEFT), ("t-1", Reason.LEASE), "j"]


async def test_keys_of_its_groups_go_with_a_job() -> None:
    store = MemoryStore()
    async with Coordinator(store) as coordinator:
        member = await coordinator.join(JoinSpec("t", job="j", lease_s=0.5), soon())
        for key in ("group/j/g/record", "group/j/h/7", "group/jj/g/record", "other"):
            await coordinator.keys.put(key, b"v")
        await coordinator.leave(member.incarnation)
        await until(coordinator, lambda: store.items("job/") == [])
        assert [entry.key for entry in await coordinator.keys.list()] == ["group/jj/g/record", "other"]
    assert [key for key, _ in store.items("key/")] == ["key/group/jj/g/record", "key/other"]


async def test_a_job_of_before_the_restart_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("psframework.membership.jobs.DEFAULT_LEASE", 0.2)
    store, ended = MemoryStore(), []
    async with Coordinator(store) as coordinator:
        member = await coordinator.join(JoinSpec("t", job="j", lease_s=60.0), soon())
        await coordinator.leave(member.incarnation)
    async with Coordinator(store) as coordinator:
        coordinator.on_job_end(ended.append)
        await until(coordinator, lambda: ended == ["j"])
        await coordinator.flushed()
    assert store.items("job/") == []


async def test_a_restart_keeps_members_keys_and_counters() -> None:
    store = MemoryStore()
    async with Coordinator(store) as coordinator:
        member = await coordinator.join(JoinSpec("w", nonce=b"n"), soon())
        revision = await coordinator.keys.put("k", b"v")
        view = coordinator.view
    async with Coordinator(store) as coordinator:
        assert coordinator.term == 2
        assert coordinator.view.members == view.members and coordinator.view.number == view.number
        assert await coordinator.join(JoinSpec("w", nonce=b"n"), soon()) == member
        assert (await coordinator.join(JoinSpec("w"), soon())).incarnation == member.incarnation + 1
        assert await coordinator.keys.put("k2", b"") > revision


async def test_a_silent_holder_outlives_the_wait() -> None:
    async with Coordinator(MemoryStore()) as coordinator:
        await coordinator.join(JoinSpec("w", "w", lease_s=60.0), soon())
        with pytest.raises(NameTaken, match="silent"):
            await coordinator.join(JoinSpec("w", "w"), Deadline.after(0.2))


class FullStore(MemoryStore):
    full = False

    def commit(self, writes: Iterable[Write]) -> None:
        if self.full:
            raise ResourceExhausted("disk full", retry_after=1.0)
        super().commit(writes)


async def test_a_full_disk_refuses_joins_and_loses_nobody() -> None:
    store = FullStore()
    async with Coordinator(store) as coordinator:
        member = await coordinator.join(JoinSpec("w", "w", lease_s=60.0), soon())
        store.full = True
        with pytest.raises(ResourceExhausted):
            await coordinator.join(JoinSpec("w", "x"), soon())
        with pytest.raises(ResourceExhausted):
            await coordinator.leave(member.incarnation)
        assert coordinator.view.members == (member,) and coordinator.registry.check_live(member.incarnation)
        store.full = False
        assert (await coordinator.join(JoinSpec("w", "x"), soon())).name == "x"


async def test_a_suspended_coordinator_evicts_nobody() -> None:
    async with Coordinator(MemoryStore()) as coordinator:
        await coordinator.join(JoinSpec("w", lease_s=0.5), soon())
        coordinator.suspend()
        for _ in range(8):
            await coordinator.ticked.wait()
        assert len(coordinator.view.members) == 1


async def test_a_store_in_use_is_refused(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("psframework.membership.store.LOCK_TIMEOUT", 0.05)
    async with Coordinator(SqliteStore(tmp_path / "s.db")):
        with pytest.raises(ConfigurationError, match="another coordinator"):
            async with Coordinator(SqliteStore(tmp_path / "s.db")):
                pass


async def test_views_skip_nothing() -> None:
    async with Coordinator(MemoryStore()) as coordinator:
        views = coordinator.views()
        known = await anext(views)
        members = await asyncio.gather(*(coordinator.join(JoinSpec("w"), soon()) for _ in range(5)))
        while len(known.members) < 5:
            known = known.apply(await asyncio.wait_for(anext(views), 5))
        await coordinator.leave(members[0].incarnation)
        known = known.apply(await asyncio.wait_for(anext(views), 5))
        assert known.members == coordinator.view.members and known.number == coordinator.view.number
        await views.aclose()
