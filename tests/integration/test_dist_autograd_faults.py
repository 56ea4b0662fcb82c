"""Distributed autograd when something goes wrong: all stop, nothing is left, and the next context works."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import dist_functions as functions
import numpy as np
import pytest
from dist_functions import Layer
from dist_stage import Stage, leaf

import psframework as psf
from psframework.autograd import Tensor
from psframework.errors import ContextClosed, DeadlineExceeded, PeerLost
from psframework.testing.cluster import program

W0, W1, W2, W3, W4 = (f"worker-{index}" for index in range(5))
SUPPORT = Path(__file__).parent.parent / "support"


@pytest.fixture(scope="module")
async def stage() -> AsyncIterator[Stage]:
    async with (
        psf.local_cluster(workers=5, imports=["dist_functions"]) as local,
        psf.connect(local.address, name="caller") as cluster,
    ):
        yield Stage(local, cluster)


@pytest.fixture(autouse=True)
async def all_is_well_afterwards(stage: Stage) -> AsyncIterator[None]:
    yield
    await stage.clean()
    await stage.works()


async def until(condition: Callable[[], Awaitable[Any]], seconds: float = 10.0) -> None:
    async with asyncio.timeout(seconds):
        while not await condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def knows_contexts(stage: Stage, name: str) -> bool:
    return "contexts" in await stage.outside(name, functions.kept)


async def through(stage: Stage, last: Any, name: str = W2) -> Tensor:
    """A loss over three workers; `last`, at `name`, comes first in its backward.

    Its tensors have a size of their own: that what is as large was short so far keeps nothing in the loop.
    """
    y = await stage.cluster.rpc_async(W0, functions.twice, (leaf(1.0, 2.0, 3.0, 4.0, 5.0),))
    z = await stage.cluster.rpc_async(W1, functions.forward_to, ([W0], y))
    return (await stage.cluster.rpc_async(name, last, (z,))).sum()


@asynccontextmanager
async def held(stage: Stage, ctx: Any, name: str = W2, **options: Any) -> AsyncIterator[asyncio.Task[None]]:
    """A backward that runs, and gets no further than a rule in that worker until the block is left."""
    loss = await through(stage, functions.slow, name)
    backward = asyncio.create_task(ctx.backward([loss], **options))
    await until(lambda: stage.outside(name, functions.is_held))
    yield backward
    if name not in stage.dead:
        await stage.outside(name, functions.let_go)


async def refused(stage: Stage, ctx: Any, text: str) -> None:
    """The context has failed: it is of no use, and others keep nothing of it, before it is left."""
    await stage.clean_elsewhere()
    with pytest.raises(ContextClosed, match=text):
        ctx.gradients()
    with pytest.raises(ContextClosed, match=text):
        await ctx.backward([leaf(1.0).sum()])
    with pytest.raises(ContextClosed, match=text):
        await stage.cluster.rpc_async(W0, functions.twice, (leaf(1.0),))


async def test_an_error_in_the_backward_of_the_third_worker(stage: Stage) -> None:
    """pytorch#27643"""
    async with stage.cluster.dist_autograd() as ctx:
        y = leaf(1.0)
        for name, function in ((W2, functions.failing), (W1, functions.twice), (W0, functions.twice)):
            y = await stage.cluster.rpc_async(name, function, (y,))
        with pytest.raises(ValueError, match=r"no gradient today \(in a backward on worker-2\)") as caught:
            await ctx.backward([y.sum()])
        assert "worker-0" not in str(caught.value)
        await refused(stage, ctx, r"has failed: .*no gradient today")


async def test_an_error_far_below(stage: Stage) -> None:
    async with stage.cluster.dist_autograd() as ctx:
        y = await stage.cluster.rpc_async(W0, functions.call_then, (W1, W2, leaf(1.0)))
        with pytest.raises(ValueError, match=r"\(in a backward on worker-2\)"):
            await ctx.backward([y.sum()], mode="fast")
        await refused(stage, ctx, r"has failed: .*no gradient today")


async def test_an_error_in_one_that_called_its_caller(stage: Stage) -> None:
    """It tells whom it called that the context has failed; they wait for the error itself."""
    for mode in ("smart", "fast"):
        async with stage.cluster.dist_autograd() as ctx:
            y = await stage.cluster.rpc_async(W0, functions.fail_by_way_of, (W1, leaf(1.0)))
            z = await stage.cluster.rpc_async(W0, functions.fail_by_way_of, ("caller", y))
            with pytest.raises(ValueError, match=r"no gradient today \(in a backward on worker-0\)"):
                await ctx.backward([z.sum()], mode=mode)
            await refused(stage, ctx, r"has failed: .*no gradient today")


async def test_a_hook_of_the_caller_that_raises(stage: Stage) -> None:
    x = leaf(1.0)
    x.register_hook(lambda gradient: int("no"))
    async with stage.cluster.dist_autograd() as ctx:
        y = await stage.cluster.rpc_async(W0, functions.forward_to, ([W1], x * 1.0))
        with pytest.raises(ValueError, match=r"\(in a backward on caller\)"):
            await ctx.backward([y.sum()])
        await refused(stage, ctx, "has failed")


async def test_the_caller_is_cancelled(stage: Stage) -> None:
    async with stage.cluster.dist_autograd() as ctx:
        async with held(stage, ctx) as backward:
            backward.cancel()
            with pytest.raises(asyncio.CancelledError):
                await backward
            await stage.clean_elsewhere([W0, W1])
        await refused(stage, ctx, "has failed: its caller was cancelled")


async def test_a_deadline_passes_in_a_backward(stage: Stage) -> None:
    async with stage.cluster.dist_autograd() as ctx:
        async with held(stage, ctx, timeout=1.0) as backward:
            with pytest.raises(DeadlineExceeded):
                await backward
        await refused(stage, ctx, "has failed")


async def test_a_context_is_left_while_calls_are_in_flight(stage: Stage) -> None:
    """pytorch#38513"""
    async with stage.cluster.dist_autograd():
        calls = [
            stage.cluster.rpc_async(W0, functions.twice_afterwards, (leaf(1.0),)),
            stage.cluster.rpc_async(W1, functions.ask_afterwards, (W2, leaf(1.0))),
        ]
        for name in (W0, W1):
            await until(lambda name=name: knows_contexts(stage, name))
    for call in calls:
        async with asyncio.timeout(5):
            with pytest.raises(ContextClosed, match="has ended"):
                await call


async def test_a_context_is_left_while_a_backward_runs(stage: Stage) -> None:
    async with AsyncExitStack() as stack:
        async with stage.cluster.dist_autograd() as ctx:
            backward = await stack.enter_async_context(held(stage, ctx))
        async with asyncio.timeout(10):
            with pytest.raises(ContextClosed, match="has ended"):
                await backward


async def test_calls_that_are_given_up_leave_nothing(stage: Stage) -> None:
    x = leaf(2.0)
    async with stage.cluster.dist_autograd() as ctx:
        call = stage.cluster.rpc_async(W0, functions.for_ever, (x,))
        await until(lambda: knows_contexts(stage, W0))
        call.cancel()
        with pytest.raises(DeadlineExceeded):
            await stage.cluster.rpc_async(W0, functions.for_ever, (x,), timeout=0.1)
        await ctx.backward([(await stage.cluster.rpc_async(W0, functions.twice, (x,))).sum()])
        np.testing.assert_array_equal(ctx.gradients()[x], [2.0])


async def test_a_layer_survives_what_its_users_do(stage: Stage) -> None:
    """Parameters that a failed context reached are used by the next one."""
    layer, x = stage.cluster.remote(W0, Layer, (3.0,)), leaf(2.0)
    async with stage.cluster.dist_autograd() as ctx:
        y = await stage.cluster.rpc_async(W1, functions.failing, (await layer.rpc_async().forward(x),))
        with pytest.raises(ValueError, match="no gradient today"):
            await ctx.backward([y.sum()])
    async with stage.cluster.dist_autograd() as ctx:
        await ctx.backward([(await layer.rpc_async().forward(x)).sum()])
        assert await layer.rpc_async().gradient(tuple(ctx.id)) == [2.0]


SCRIPT = """
    import asyncio, sys
    sys.path.insert(0, sys.argv[3])
    import numpy as np
    import psframework as psf
    import dist_functions as functions

    async def main():
        async with psf.connect(sys.argv[1], token=sys.argv[2], name="creator") as cluster:
            async with cluster.dist_autograd() as ctx:
                x = psf.tensor(np.ones(7), requires_grad=True)
                y = await cluster.rpc_async("worker-0", functions.forward_to, (["worker-1"], x))
                print("made", flush=True)
                if sys.argv[4] == "True":
                    await ctx.backward([(await cluster.rpc_async("worker-2", functions.slow, (y,))).sum()])
                await asyncio.sleep(60)

    if __name__ == "__main__":
        asyncio.run(main())
"""


async def creator_dies(stage: Stage, folder: Path, *, in_a_backward: bool) -> None:
    arguments = [stage.local.address, stage.local.token, str(SUPPORT), str(in_a_backward)]
    async with program(folder, "creates", SCRIPT, arguments) as creates:
        await creates.line("made")
        if in_a_backward:
            await until(lambda: stage.outside(W2, functions.is_held))
        assert await knows_contexts(stage, W0)
        creates.process.kill()
        if in_a_backward:
            await stage.clean([W0, W1], seconds=12)  # within a lease
            await stage.outside(W2, functions.let_go)
        await stage.clean(seconds=12)


async def test_the_creator_is_killed(stage: Stage, tmp_path: Path) -> None:
    await creator_dies(stage, tmp_path, in_a_backward=True)


@pytest.mark.soak
async def test_the_creator_is_killed_in_a_forward(stage: Stage, tmp_path: Path) -> None:
    await creator_dies(stage, tmp_path, in_a_backward=False)


@pytest.mark.soak
async def test_a_worker_sleeps_through_the_end_of_a_context(stage: Stage) -> None:
    """For less than a lease: it stays a member, and hears of it when it wakes."""
    pid = stage.local.processes[W2].pid
    assert pid is not None
    async with stage.cluster.dist_autograd() as ctx:
        loss = await through(stage, functions.twice)
        os.kill(pid, signal.SIGSTOP)
        try:
            with pytest.raises((PeerLost, DeadlineExceeded)):
                await ctx.backward([loss], timeout=1.0)
            await stage.clean_elsewhere([W0, W1])
        finally:
            os.kill(pid, signal.SIGCONT)
    await until(lambda: answers(stage, W2))
    await stage.clean(seconds=12)


async def answers(stage: Stage, name: str) -> bool:
    try:
        return bool(await stage.outside(name, functions.pid) == stage.local.processes[name].pid)
    except PeerLost:
        return False


# From here on workers are missing


async def test_a_worker_is_killed_in_a_backward(stage: Stage) -> None:
    async with stage.cluster.dist_autograd() as ctx:
        async with held(stage, ctx, W4) as backward:
            killed = time.monotonic()
            stage.kill(W4)
            with pytest.raises(PeerLost, match=W4):
                await backward
            assert time.monotonic() - killed < 2.0
        await refused(stage, ctx, r"has failed: .*worker-4")


async def test_a_middle_process_is_killed(stage: Stage) -> None:
    """Only it called worker-2 in this context: that one asks the creator, and forgets."""
    async with stage.cluster.dist_autograd() as ctx:
        y = await stage.cluster.rpc_async(W3, functions.forward_to, ([W2], leaf(1.0)))
        stage.kill(W3)
        with pytest.raises(PeerLost, match=W3):
            await ctx.backward([y.sum()], timeout=20)
    assert await knows_contexts(stage, W2)
    await stage.clean(seconds=12)
