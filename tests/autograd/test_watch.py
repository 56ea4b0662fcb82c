import asyncio

import numpy as np
import pytest

from psframework.autograd import tensor, watch
from psframework.autograd.record import record_many
from psframework.autograd.watch import observing


def test_observers_are_told_of_nodes_and_results():
    x, outer, inner = tensor(np.ones(2), True), [], []
    with observing(lambda node, data: outer.append((node.name, data is None))):
        _ = x * 2
        with observing(lambda node, data: inner.append(node.name)):
            record_many("both", (x.data, x.data), lambda g: (g[0],), (x,))
        _ = x + 1
    _ = x - 1
    assert outer == [("multiply", False), ("both", True), ("both", False), ("both", False), ("add", False)]
    assert inner == ["both"] * 3


def test_an_error_ends_the_block():
    before = watch.blocks
    with pytest.raises(KeyError), observing(lambda node, data: None):
        raise KeyError
    assert watch.blocks == before


async def test_other_tasks_are_not_watched():
    x, seen = tensor(np.ones(2), True), []
    inside, done = asyncio.Event(), asyncio.Event()

    async def watched():
        with observing(lambda node, data: seen.append(node.name)):
            inside.set()
            await asyncio.wait_for(done.wait(), 5)
            return x * 2

    async def beside():
        await asyncio.wait_for(inside.wait(), 5)
        _ = x + 1
        done.set()

    await asyncio.gather(watched(), beside())
    assert seen == ["multiply"]
