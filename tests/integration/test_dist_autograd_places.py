"""Where code of a context runs: tasks, threads, connections, workers; and what others may say of it."""

import asyncio
import threading
from collections.abc import AsyncIterator
from random import Random
from typing import Any

import dist_functions as functions
import numpy as np
import pytest
from dist_functions import Layer
from dist_stage import Stage, leaf

import psframework as psf
from psframework.dist_autograd.handle import Mode
from psframework.errors import AutogradError, ContextClosed, ContextMismatch, PermissionDenied, WireError
from psframework.proto.v1 import dist_autograd_pb2 as pb
from psframework.rpc.deadline import Deadline
from psframework.rpc.values import arguments
from psframework.rpc.values.journey import Journey

W0, W1, W2 = "worker-0", "worker-1", "worker-2"
HUGE = (1 << 64) - 1
SMART_AND_FAST: list[Mode] = ["smart", "fast"]


@pytest.fixture(scope="module")
async def stage() -> AsyncIterator[Stage]:
    async with (
        psf.local_cluster(workers=3, imports=["dist_functions"]) as local,
        psf.connect(local.address, name="caller") as cluster,
    ):
        yield Stage(local, cluster)


@pytest.fixture(autouse=True)
async def nothing_stays(stage: Stage) -> AsyncIterator[None]:
    yield
    await stage.clean()


async def test_tasks_and_threads_inherit_the_context(stage: Stage) -> None:
    rpc, x = stage.cluster.rpc_async, leaf(2.0)
    async with stage.cluster.dist_autograd() as ctx:
        for function in (functions.current_context, functions.current_context_in_a_thread):
            assert await asyncio.create_task(ask(stage.cluster, function)) == ctx.id
        y = await rpc(W0, functions.call_back, ("caller", x))  # tasks there, threads here
        z = await rpc(W0, functions.call_back, (W1, y))
        await ctx.backward([z.sum()])
        assert ctx.gradients()[x] == [36.0]
    assert await rpc(W0, functions.current_context) is None
    assert await rpc(W0, functions.current_context_in_a_thread) is None


async def ask(cluster: psf.Cluster, function: Any) -> Any:
    return await cluster.rpc_async(W1, function)


async def test_forwards_at_once(stage: Stage) -> None:
    """Messages of one context cross each other; sums are in another order then."""
    x = leaf(0.1, 0.2)
    async with stage.cluster.dist_autograd() as ctx:
        results = await asyncio.gather(
            *(
                stage.cluster.rpc_async(stage.workers[n % 3], functions.forward_to, ([W0, W1], x * float(n)))
                for n in range(20)
            )
        )
        await ctx.backward([sum(results).sum()])
        np.testing.assert_allclose(ctx.gradients()[x], [8.0 * 190] * 2, rtol=1e-12)


async def test_backwards_at_once_in_one_context_take_turns(stage: Stage) -> None:
    x = leaf(2.0)
    async with stage.cluster.dist_autograd() as ctx:
        y = await stage.cluster.rpc_async(W0, functions.forward_to, ([W1], x))
        losses = [(y * float(number)).sum() for number in range(1, 5)]
        await asyncio.gather(*(ctx.backward([loss], retain_graph=True) for loss in losses))
        assert ctx.gradients()[x] == [4.0 * 10]


async def test_a_tensor_that_goes_to_all(stage: Stage) -> None:
    x = leaf(2.0)
    async with stage.cluster.dist_autograd() as ctx:
        results = await stage.cluster.rpc_all(stage.workers, functions.twice, (x,))
        await ctx.backward([sum(results).sum()], mode="fast")
        assert ctx.gradients()[x] == [2.0 * len(stage.workers)]


async def test_contexts_do_not_meet_in_a_batch(stage: Stage) -> None:
    async def gradient(number: float) -> Any:
        x, call = leaf(number), stage.cluster.rpc_async
        async with stage.cluster.dist_autograd() as ctx:
            y, z = await asyncio.gather(*(call(W0, functions.twice_together, (x,)) for _ in range(2)))
            await ctx.backward([(y * z).sum()])
            return ctx.gradients()[x]

    numbers = [1.0, 2.0, 3.0, 4.0]
    assert await asyncio.gather(*map(gradient, numbers)) == [8.0 * number for number in numbers]


async def test_a_worker_opens_contexts_too(stage: Stage) -> None:
    """Also while it serves a call of another one's context, through whose creator its own may go."""
    x = leaf(2.0)
    async with stage.cluster.dist_autograd() as ctx:
        y = await stage.cluster.rpc_async(W0, functions.twice, (x,))
        for names in ([W1, W2], ["caller", W0, "caller"]):
            found = await stage.cluster.rpc_async(W0, functions.gradient_of_its_own, (names, y))
            np.testing.assert_array_equal(found, [2.0 * 4.0 ** len(names) * 4.0])
        with pytest.raises(ContextMismatch, match=f"belongs to .* {ctx.id} of caller"):
            await stage.cluster.rpc_async(W0, functions.backward_of_others, (y,))
        await ctx.backward([y.sum()])
        assert ctx.gradients()[x] == [2.0]


async def test_messages_that_can_not_be_sent_take_no_part(stage: Stage) -> None:
    rpc, x = stage.cluster.rpc_async, leaf(2.0)
    async with stage.cluster.dist_autograd() as ctx:
        y = await rpc(W0, functions.twice, (x,))
        with pytest.raises(TypeError, match="lock"):
            rpc(W0, functions.add, (y, threading.Lock()))
        with pytest.raises(TypeError, match="lock"):
            await rpc(W0, functions.with_a_lock)
        await ctx.backward([y.sum()], mode="fast")
        assert ctx.gradients()[x] == [2.0]


async def test_several_connections_in_one_process(stage: Stage) -> None:
    x, address = leaf(2.0), stage.local.address
    async with psf.connect(address, name="one") as one, psf.connect(address, name="two") as two:
        async with one.dist_autograd() as ctx:
            y = await one.rpc_async("two", functions.twice, (x,))
            z = await one.rpc_async("caller", functions.twice, (y,))
            await ctx.backward([(await one.rpc_async(W0, functions.twice, (z,))).sum()])
            assert ctx.gradients()[x] == [8.0]
            with pytest.raises(WireError, match="the connection that it was opened on"):
                await two.rpc_async(W0, functions.twice, (y,))
        async with two.dist_autograd() as ctx:
            y = await two.rpc_async("one", functions.forward_to, ([W0, "two"], x))
            await ctx.backward([y.sum()])
            assert ctx.gradients()[x] == [8.0]


@pytest.mark.parametrize("mode", SMART_AND_FAST)
async def test_calls_of_a_process_to_itself(stage: Stage, mode: Mode) -> None:
    cluster, x = stage.cluster, leaf(2.0)
    layer = cluster.remote("caller", Layer, (3.0,))
    async with cluster.dist_autograd() as ctx:
        y = await cluster.rpc_async("caller", functions.forward_to, (["caller", W0, W0, "caller"], x))
        z = await layer.rpc_async().forward(y)
        await ctx.backward([z.sum()], mode=mode)
        assert ctx.gradients()[x] == [32.0 * 3.0]
        assert await layer.rpc_async().gradient(tuple(ctx.id)) == [64.0]


# What anybody may send


def any_request(random: Random, contexts: list[Any], messages: list[Any]) -> tuple[str, Any]:
    """A message of any kind, with names that are real, near, or huge."""

    def of(known: list[Any]) -> tuple[int, int]:
        high, low = random.choice(known)
        return random.choice([(high, low), (high, low + 1), (low, high), (HUGE, HUGE), (0, 0), (high, HUGE)])

    def context() -> pb.ContextId:
        creator, counter = of(contexts)
        return pb.ContextId(creator=creator, counter=counter)

    def message() -> pb.TensorsId:
        sender, counter = of(messages)
        return pb.TensorsId(sender=sender, counter=counter)

    number = random.choice([0, 1, 2, (1 << 32) - 1])
    id = pb.BackwardId(context=context(), number=number, fast=random.random() < 0.5)
    kind = random.choice(["Discover", "Pass", "Release", "Live", "Outline"])
    if kind == "Discover":
        request: Any = pb.DiscoverRequest(backward=id)
        for _ in range(random.randrange(3)):
            tensors = random.choices([0, 1, 7, (1 << 32) - 1], k=random.randrange(4))
            request.parts.add(message=message(), tensors=tensors)
    elif kind == "Pass":
        request = pb.PassRequest(backward=id, message=message())
        wrong = [(np.ones(3),), (np.ones(2, "f4"),), (None, None), (), "text", [np.ones(2)], ({},), (None,)]
        request.gradients.CopyFrom(arguments.encode(random.choice(wrong), Journey()))
        request.gradients.outline = random.choice([request.gradients.outline, random.randbytes(9)])
    elif kind == "Live":
        request = pb.LiveRequest(contexts=[context() for _ in range(random.randrange(4))])
    elif kind == "Outline":
        request = pb.OutlineRequest(context=id.context, limit=random.choice([0, 1, 1 << 31]))
    else:
        request = pb.ReleaseRequest(below=random.choice([0, HUGE]))
        request.contexts.add(creator=HUGE - 1, counter=random.randrange(9))
    return kind, request


@pytest.mark.parametrize("seed", range(5))
async def test_messages_that_anybody_may_send(stage: Stage, seed: int) -> None:
    """Whatever a member says about a context that it has no part in is refused, and that context goes on."""
    random, x = Random(seed), leaf(1.0, 2.0)
    pid = stage.local.processes[W0].pid
    async with psf.connect(stage.local.address, name="eve") as eve, stage.cluster.dist_autograd() as ctx:
        await eve.rpc_async(W0, functions.is_held)
        y = await stage.cluster.rpc_async(W0, functions.forward_to, ([W1], x))
        messages = await stage.cluster.rpc_async(W0, functions.messages_of, (tuple(ctx.id),))
        peer, refused = eve.agent.peer_for(W0), 0
        assert peer is not None
        for _ in range(100):
            kind, request = any_request(random, [ctx.id], messages)
            path = f"/psframework.proto.v1.DistAutogradService/{kind}"
            try:
                await peer.call(path, request, getattr(pb, f"{kind}Reply"), deadline=Deadline.after(5))
            except (WireError, ContextClosed, PermissionDenied, AutogradError):
                refused += 1
        assert refused > 30
        await ctx.backward([y.sum()])
        np.testing.assert_array_equal(ctx.gradients()[x], [4.0, 4.0])
    assert stage.local.processes[W0].pid == pid and stage.local.processes[W0].alive
