"""Pictures of a context over real processes: before and after a backward, and when one has died."""

import re
from collections.abc import AsyncIterator

import numpy as np
import pytest
from dist_functions import forward_to, twice

import psframework as psf
from psframework.cluster.local import LocalCluster
from psframework.dist_autograd.picture import FREED
from psframework.errors import ArgumentError, ContextClosed

W0, W1 = "worker-0", "worker-1"
Pair = tuple[LocalCluster, psf.Cluster]


@pytest.fixture
async def pair() -> AsyncIterator[Pair]:
    async with (
        psf.local_cluster(workers=2, imports=["dist_functions"]) as local,
        psf.connect(local.address, name="caller") as cluster,
    ):
        yield local, cluster


def words(svg: str) -> list[str]:
    """The text of a picture, but for titles."""
    return re.findall(r"<text[^>]*>([^<]*)</text>", svg)


async def test_before_and_after_backwards_and_when_a_worker_has_died(pair: Pair) -> None:
    local, cluster = pair
    x = psf.tensor(np.ones(4), requires_grad=True)
    async with cluster.dist_autograd() as ctx:
        with pytest.raises(ArgumentError, match="no tensor that requires grad has travelled"):
            await ctx.draw(None)
        loss = (await cluster.rpc_async(W0, forward_to, ([W1], x))).sum()
        unused = await cluster.rpc_async(W1, twice, (x,))

        before = (await ctx.draw(None, names={"x": x})).svg
        shown = words(before)
        assert {"caller", W0, W1, "x", "sum"} <= set(shown), "W1 was called by W0"
        assert "3 processes, 6 messages, 192 B" in shown[-1]
        assert before.count("url(#message)") == 6 and shown.count("multiply") == 3
        assert shown.count("dist_functions.forward_to · 32 B") == 8
        assert before.count('<g class="root">') == 1

        await ctx.backward([loss], retain_graph=True)
        assert (await ctx.draw(None, names={"x": x})).svg == before

        await ctx.backward([loss])
        after = (await ctx.draw(None)).svg
        assert after.count('class="message freed"') == 8 and FREED in words(after)
        assert after.count("url(#message)") == 6 and "sum" not in words(after)
        assert words(after).count("multiply") == 1, "what took no part was not freed"

        local.processes[W1].kill()
        gone = (await ctx.draw(None, timeout=20)).svg
        assert gone.count('<g class="lane">') == 3 and any(
            W1 in word and "gone" in word for word in words(gone)
        )
        assert gone.count("url(#message)") == 2, "those between the others"
    with pytest.raises(ContextClosed):
        await ctx.draw(None)
    assert unused is not None


async def test_large_graphs_come_folded(pair: Pair) -> None:
    _, cluster = pair
    x = psf.tensor(np.ones(4), requires_grad=True)
    async with cluster.dist_autograd() as ctx:
        y = x
        for _ in range(300):
            y = y * 1.0
        loss = (await cluster.rpc_async(W0, twice, (y,))).sum()
        assert {"300 operations", "multiply ×300"} < set(words((await ctx.draw(None)).svg))
        assert words((await ctx.draw(None, limit=1000)).svg).count("multiply") == 301
        assert words((await ctx.draw(None, roots=loss)).svg).count("sum") == 1
