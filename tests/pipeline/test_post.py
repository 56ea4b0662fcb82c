"""What is sent: to others by a call without a limit of time, to oneself without any call."""

import asyncio
from typing import Any

import numpy as np

from psframework.pipeline.mailbox import Mailbox
from psframework.pipeline.plan import Key
from psframework.pipeline.post import DELIVER, Post

KEY = Key(1, "F", 0, 0)


class Recorder:
    """A cluster that notes what is called."""

    name = "stage-0"

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def rpc_async(
        self, to: Any, fn: Any, args: Any = (), kwargs: Any = None, timeout: float | None = None
    ) -> asyncio.Future[Any]:
        self.calls.append((to, fn, args, timeout))
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        future.set_result("arrived")
        return future


async def test_to_another_service() -> None:
    cluster, mailbox = Recorder(), Mailbox()
    tree = {"x": np.arange(3)}
    sent = Post("pipe", cluster, mailbox).send("stage-1", KEY, tree)
    assert sent is not None and await sent == "arrived"
    assert cluster.calls == [("stage-1", DELIVER, ("pipe", [(KEY, tree)]), 0)]
    assert len(mailbox) == 0


async def test_to_itself() -> None:
    """As virtual stages and pipes of one rank do."""
    cluster, mailbox = Recorder(), Mailbox()
    tree = np.arange(3)
    assert Post("pipe", cluster, mailbox).send("stage-0", KEY, tree) is None
    assert cluster.calls == []
    assert await mailbox.take(KEY) is tree


async def test_several_letters_at_once() -> None:
    cluster, mailbox = Recorder(), Mailbox()
    letters = [(Key(1, "F", 0, number), number) for number in range(3)]
    post = Post("pipe", cluster, mailbox)
    assert post.send_all("stage-0", letters) is None
    assert [await mailbox.take(key) for key, _ in letters] == [0, 1, 2]
    sent = post.send_all("stage-1", tuple(letters))
    assert sent is not None and await sent == "arrived"
    assert cluster.calls == [("stage-1", DELIVER, ("pipe", letters), 0)]


async def test_a_driver_has_no_mailbox() -> None:
    """On a service that both drives and holds a stage the letter goes to the stage, by a call."""
    cluster = Recorder()
    assert Post("pipe", cluster).send("stage-0", KEY, None) is not None
    assert [call[0] for call in cluster.calls] == ["stage-0"]
