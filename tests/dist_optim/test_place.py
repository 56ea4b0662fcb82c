"""This process as an owner. Another one needs processes: test_optimizer.py."""

import asyncio
import threading
from typing import Any, cast

import numpy as np

from psframework import nn
from psframework.dist_optim.owner import OwnersOptimizer
from psframework.dist_optim.place import Here
from psframework.optim import SGDRule
from psframework.rref.handle import RRef

SPEC = SGDRule(lr=1.0).spec()


class Later(RRef):
    """A reference to a value of this process that is still being made."""

    __slots__ = ("asked", "value")

    def __init__(self) -> None:
        self.asked = 0
        self.value: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    async def to_here(self, timeout: float | None = None) -> Any:
        self.asked += 1
        return await self.value

    def __del__(self) -> None:
        pass


async def test_what_is_here_is_ready_at_once_and_called_in_a_thread() -> None:
    here = Here(SPEC, [(0, nn.Linear(2, 1))], "me")
    await here.made()
    assert await here.call("keys", timeout=None) == ["0.weight", "0.bias"]
    threads: list[int] = []
    here._optimizer = cast(
        OwnersOptimizer, type("Spy", (), {"look": lambda self: threads.append(threading.get_ident())})()
    )
    await here.call("look", timeout=None)
    assert threads and threads[0] != threading.get_ident()


async def test_steps_that_wait_for_a_value_get_one_optimizer() -> None:
    later = Later()
    here = Here(SPEC, [(0, later), (1, nn.Parameter(np.zeros(1)))], "me")
    waiting = [asyncio.create_task(here.made()) for _ in range(3)]
    await asyncio.sleep(0)
    assert later.asked == 3
    later.value.set_result(nn.Linear(2, 1, bias=False))
    await waiting[0]
    first = here._optimizer
    await asyncio.gather(*waiting)
    assert here._optimizer is first is not None
    assert first.keys() == ["0.weight", "1"]
