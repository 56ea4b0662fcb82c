"""Looking at a cluster without being in it."""

import pytest

from psframework.errors import DeadlineExceeded
from psframework.membership.observer import Observer
from psframework.rpc.deadline import Deadline


async def test_view(served) -> None:
    async with Observer(served.addresses) as observer:
        assert (await observer.view()).members == ()
        async with served.join("worker", job="j") as member:
            view = await observer.view()
            assert view.members == (member.member,) and view.number > 0 and observer.term == 1


async def test_nobody_there(unused_address: str) -> None:
    async with Observer([unused_address]) as observer:
        with pytest.raises(DeadlineExceeded, match="ListMembers"):
            await observer.view(Deadline.after(0.2))
