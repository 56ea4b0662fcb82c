"""Looking at a cluster without being in it."""

import socket

import pytest

import psframework as psf
from psframework.errors import DeadlineExceeded
from psframework.rpc.deadline import Deadline
from psframework.rpc.security.credentials import Security
from psframework.testing.observer import Observer


async def test_view() -> None:
    async with psf.local_cluster() as local:
        async with Observer([local.address], Security.plaintext(token=local.token)) as observer:
            assert (await observer.view()).members == ()
            async with psf.connect(local.address, job="j") as cluster:
                view = await observer.view()
                assert view.members == (cluster.membership.member,)
                assert view.number > 0
                assert observer.term == 1


async def test_nobody_there() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        async with Observer([f"127.0.0.1:{unused.getsockname()[1]}"]) as observer:
            with pytest.raises(DeadlineExceeded, match="ListMembers"):
                await observer.view(Deadline.after(0.2))
