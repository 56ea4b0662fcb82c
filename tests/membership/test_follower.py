"""Following the view: whole, then changes, over broken streams; and what is lost is told once."""

import asyncio
from contextlib import asynccontextmanager

from psframework.errors import Evicted
from psframework.membership.follower import FollowerHooks, ViewFollower
from psframework.membership.lease import LeaseOptions, Reason
from psframework.membership.line import Line
from psframework.membership.registry import JoinSpec
from psframework.membership.store import MemoryStore
from psframework.membership.view import Member, View
from psframework.rpc.deadline import Deadline
from psframework.rpc.security.credentials import Security


class Following:
    def __init__(self, line: Line, incarnation: int = 0) -> None:
        self.views: asyncio.Queue[View] = asyncio.Queue()
        self.lost: list[tuple[str, Reason]] = []
        self.evicted: asyncio.Queue[Evicted] = asyncio.Queue()
        self.broken = 0
        hooks = FollowerHooks(self.views.put_nowait, self.note, self.evicted.put_nowait, self.count)
        self.follower = ViewFollower(line, incarnation, hooks, View())

    def note(self, member: Member, reason: Reason) -> None:
        self.lost.append((member.name, reason))

    def count(self) -> None:
        self.broken += 1

    async def until(self, *names: str) -> View:
        async with asyncio.timeout(10):
            while True:
                view = await self.views.get()
                if sorted(member.name for member in view.members) == sorted(names):
                    return view


@asynccontextmanager
async def follow(addresses: list[str], incarnation: int = 0):
    async with Line(addresses, Security.plaintext()) as line:
        following = Following(line, incarnation)
        task = asyncio.ensure_future(following.follower.run())
        try:
            yield following
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def join(served, name: str = "", lease_s: float = 60.0) -> Member:
    return await served.coordinator.join(JoinSpec("worker", name, lease_s=lease_s), Deadline.after(5))


async def test_whole_then_changes(served) -> None:
    first = await join(served)
    async with follow(served.addresses) as following:
        await following.until("worker-0")
        await join(served)
        await following.until("worker-0", "worker-1")
        await served.coordinator.leave(first.incarnation)
        await following.until("worker-1")
        assert following.lost == [("worker-0", Reason.LEFT)]


async def test_over_a_restart_losses_are_told_once(start) -> None:
    store = MemoryStore()
    async with start(store) as served:
        first, port = await join(served), served.port
        await join(served)
        waiting = follow(served.addresses)
        following = await waiting.__aenter__()
        await following.until("worker-0", "worker-1")
    async with start(store, port=port) as served:
        await served.coordinator.leave(first.incarnation)
        await following.until("worker-1")
        assert [name for name, _ in following.lost] == ["worker-0"] and following.broken >= 1
        await waiting.__aexit__(None, None, None)


async def test_its_own_fence_ends_it(served) -> None:
    member = await join(served)
    async with follow(served.addresses, member.incarnation) as following:
        await following.until("worker-0")
        await served.coordinator.leave(member.incarnation)
        await asyncio.wait_for(following.evicted.get(), 10)
        assert following.lost == []


async def test_a_stranger_is_evicted(served) -> None:
    async with follow(served.addresses, 77) as following:
        assert "77" in str(await asyncio.wait_for(following.evicted.get(), 10))


async def test_a_stalled_member_is_told_and_stays(start) -> None:
    async with start(options=LeaseOptions(stall_limit=0.3)) as served:
        await join(served)
        async with follow(served.addresses) as following:
            async with asyncio.timeout(10):
                while not following.lost:
                    view = await following.views.get()
            assert following.lost == [("worker-0", Reason.STALLED)]
            assert view.members[0].state.value == "stalled"
