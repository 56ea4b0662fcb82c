"""What distributed autograd must be right about, over real processes."""

import asyncio
import gc
import threading
from collections.abc import AsyncIterator
from contextlib import aclosing

import dist_functions as functions
import ml_dtypes
import numpy as np
import pytest
from dist_functions import Layer
from dist_stage import Stage, leaf

import psframework as psf
from psframework import ops
from psframework.autograd import no_grad
from psframework.dist_autograd.handle import Mode
from psframework.errors import AutogradError, ContextClosed, ContextMismatch, DeadlineExceeded

W0, W1, W2 = "worker-0", "worker-1", "worker-2"
SMART_AND_FAST: list[Mode] = ["smart", "fast"]


@pytest.fixture(scope="module")
async def stage() -> AsyncIterator[Stage]:
    async with (
        psf.local_cluster(workers=5, imports=["dist_functions"]) as local,
        psf.connect(local.address, name="caller") as cluster,
    ):
        yield Stage(local, cluster)


@pytest.fixture(autouse=True)
async def nothing_stays(stage: Stage) -> AsyncIterator[None]:
    yield
    await stage.clean()


# What results are used for


async def test_results_that_nothing_uses(stage: Stage) -> None:
    rpc, x = stage.cluster.rpc_async, leaf(1.0, 2.0)
    async with stage.cluster.dist_autograd() as ctx:
        used, *_ = await rpc(W0, functions.both, (x,))  # a tensor of the same message is not used either
        await rpc(W1, functions.forward_to, ([W2, W0], used))
        await ctx.backward([used.sum()])
        np.testing.assert_array_equal(ctx.gradients()[x], [2.0, 2.0])


async def test_fast_names_the_calls_whose_results_nothing_uses(stage: Stage) -> None:
    rpc, x = stage.cluster.rpc_async, leaf(1.0, 2.0)
    async with stage.cluster.dist_autograd() as ctx:
        used = await rpc(W0, functions.twice, (x,))
        await rpc(W1, functions.forward_to, ([W2], used))
        began = asyncio.get_running_loop().time()
        with pytest.raises(
            AutogradError, match=r"(?s)dist_functions\.forward_to.*use mode='smart'"
        ) as caught:
            await ctx.backward([used.sum()], mode="fast")
        assert asyncio.get_running_loop().time() - began < 1
        assert "functions.twice" not in str(caught.value)
        with pytest.raises(ContextClosed, match="has failed: no gradient reached"):
            ctx.gradients()
        with pytest.raises(ContextClosed, match="has failed: no gradient reached"):
            await rpc(W0, functions.twice, (x,))


async def test_fast_names_what_many_others_wait_for_first(stage: Stage) -> None:
    rpc, x = stage.cluster.rpc_async, leaf(1.0, 2.0)
    async with stage.cluster.dist_autograd() as ctx:
        used = [await rpc(W0, functions.twice, (x,)) for _ in range(12)]
        assert await rpc(W1, functions.requires_grad, (x,))  # its result is no tensor
        with pytest.raises(
            AutogradError, match=r"reached 13 message.*: message \S+ to worker-1, about \S+requires_grad; "
        ):
            await ctx.backward([sum(used).sum()], mode="fast")


async def test_fast_names_what_processes_did_not_use_that_no_gradient_reaches(stage: Stage) -> None:
    rpc, x = stage.cluster.rpc_async, leaf(1.0, 2.0)
    for names in ([W2], [W2, W0]):
        async with stage.cluster.dist_autograd() as ctx:
            used = await rpc(W0, functions.twice, (x,))
            assert await rpc(W1, functions.ask_and_forget, (names,)) is None
            with pytest.raises(AutogradError, match=r"message \S+ of worker-2, about dist_functions\.twice"):
                await ctx.backward([used.sum()], mode="fast")
        async with stage.cluster.dist_autograd() as ctx:
            used = await rpc(W0, functions.twice, (x,))
            await rpc(W1, functions.ask_and_forget, (names,))
            await ctx.backward([used.sum()])


@pytest.mark.parametrize("mode", SMART_AND_FAST)
async def test_results_that_are_used_twice(stage: Stage, mode: Mode) -> None:
    rpc, x = stage.cluster.rpc_async, leaf(1.0, 2.0)
    async with stage.cluster.dist_autograd() as ctx:
        y = await rpc(W0, functions.twice, (x,))
        z = await rpc(W1, functions.add, (y, y))
        await ctx.backward([(z * y).sum(), y.sum()], mode=mode)  # 8 x^2 + 2 x
        np.testing.assert_array_equal(ctx.gradients()[x], [18.0, 34.0])


@pytest.mark.parametrize("mode", SMART_AND_FAST)
async def test_one_worker_many_times(stage: Stage, mode: Mode) -> None:
    x = y = leaf(1.0, -1.0)
    async with stage.cluster.dist_autograd() as ctx:
        for _ in range(100):
            y = await stage.cluster.rpc_async(W0, functions.add, (y, x))
        await ctx.backward([y.sum()], mode=mode)
        np.testing.assert_array_equal(ctx.gradients()[x], [101.0, 101.0])


@pytest.mark.parametrize("mode", SMART_AND_FAST)
async def test_a_parameter_that_is_reached_by_two_paths(stage: Stage, mode: Mode) -> None:
    one = stage.cluster.remote(W0, Layer, (3.0,))
    two = stage.cluster.remote(W1, Layer, (5.0,))
    x = leaf(2.0)
    async with stage.cluster.dist_autograd() as ctx:
        direct = await one.rpc_async().forward(x)
        around = await two.rpc_async().forward_by(one, x)
        await ctx.backward([(direct + around).sum()], mode=mode)
        assert await one.rpc_async().gradient(tuple(ctx.id)) == [2.0 + 5.0 * 2.0]
        assert await two.rpc_async().gradient(tuple(ctx.id)) == [6.0]
        assert ctx.gradients()[x] == [3.0 + 15.0]
        assert await one.rpc_async().grad() is None


@pytest.mark.parametrize("mode", SMART_AND_FAST)
async def test_references_returned_from_nested_calls(stage: Stage, mode: Mode) -> None:
    rpc, x = stage.cluster.rpc_async, leaf(2.0)
    async with stage.cluster.dist_autograd() as ctx:
        made = await rpc(W0, functions.make_there, (W1, [3.0]))
        assert made.owner_name() == W1
        y = await made.rpc_async().forward(x)
        result = await rpc(W2, functions.compute_there, (W1, y))
        await ctx.backward([(await result.to_here()).sum()], mode=mode)
        assert ctx.gradients()[x] == [6.0]
        assert await made.rpc_async().gradient(tuple(ctx.id)) == [4.0]


async def test_to_here_once_twice_and_in_a_third_process(stage: Stage) -> None:
    cluster, x = stage.cluster, leaf(2.0)
    async with cluster.dist_autograd() as ctx:
        kept = cluster.remote(W0, functions.twice, (x,))
        once, again = await kept.to_here(), await kept.to_here()
        third = await cluster.rpc_async(W1, functions.fetch_and_double, (kept,))
        await ctx.backward([(once + again * 10.0 + third * 100.0).sum()])
        assert ctx.gradients()[x] == [2.0 + 20.0 + 400.0]


@pytest.mark.parametrize("mode", SMART_AND_FAST)
async def test_parameters_in_three_workers(stage: Stage, mode: Mode) -> None:
    layers = [stage.cluster.remote(name, Layer, (number,)) for name, number in zip((W0, W1, W2), (2, 3, 5))]
    x = y = leaf(1.0)
    async with stage.cluster.dist_autograd() as ctx:
        for layer in layers:
            y = await layer.rpc_async().forward(y)
        await ctx.backward([y.sum()], mode=mode)
        assert ctx.gradients()[x] == [30.0]
        assert [await each.rpc_async().gradient(tuple(ctx.id)) for each in layers] == [15.0, 10.0, 6.0]


async def test_sixteen_contexts_at_once_on_the_same_parameters(stage: Stage) -> None:
    layers = [stage.cluster.remote(name, Layer, (3.0,)) for name in (W0, W1, W2)]

    async def one(number: float) -> None:
        x = leaf(number)
        async with stage.cluster.dist_autograd() as ctx:
            for times in (1.0, 2.0):
                y = await layers[0].rpc_async().forward(x)
                z = await layers[1].rpc_async().forward_by(layers[2], y)
                await ctx.backward([z.sum()])
                assert ctx.gradients()[x] == [27.0 * times]
                found = [await layer.rpc_async().gradient(tuple(ctx.id)) for layer in layers]
                assert found == [[9.0 * number * times]] * 3

    async with asyncio.timeout(30):
        await asyncio.gather(*(one(float(number)) for number in range(1, 17)))


# What a graph is used for


async def test_a_graph_that_is_kept_is_run_again(stage: Stage) -> None:
    layer, x = stage.cluster.remote(W0, Layer, (3.0,)), leaf(2.0)
    async with stage.cluster.dist_autograd() as ctx:
        loss = (
            await stage.cluster.rpc_async(W1, functions.twice, (await layer.rpc_async().forward(x),))
        ).sum()
        for times in (1.0, 2.0):
            await ctx.backward([loss], retain_graph=True)
            assert ctx.gradients()[x] == [6.0 * times]
            assert await layer.rpc_async().gradient(tuple(ctx.id)) == [4.0 * times]
        await ctx.backward([loss])
        assert ctx.gradients()[x] == [18.0]


async def test_a_freed_graph_is_refused_before_anything_runs(stage: Stage) -> None:
    layer, x = stage.cluster.remote(W0, Layer, (3.0,)), leaf(2.0)
    other = leaf(1.0)
    async with stage.cluster.dist_autograd() as ctx:
        y = await layer.rpc_async().forward(x)
        again = y * other  # of this, only what is at the worker will be freed
        await ctx.backward([(y * 1.0).sum()])
        with pytest.raises(AutogradError, match=r"'\w+' was freed.*retain_graph=True"):
            await ctx.backward([again.sum()])
        assert ctx.gradients() == {x: [3.0]}
        assert await layer.rpc_async().gradient(tuple(ctx.id)) == [2.0]
        await ctx.backward([(await layer.rpc_async().forward(x)).sum()])  # the context goes on
        assert ctx.gradients() == {x: [6.0]}


async def test_several_forwards_and_fast_backwards_in_one_context(stage: Stage) -> None:
    x = leaf(2.0)
    async with stage.cluster.dist_autograd() as ctx:
        for times in (1.0, 2.0, 3.0):
            y = await stage.cluster.rpc_async(W0, functions.forward_to, ([W1], x))
            await ctx.backward([y.sum()], mode="fast")
            assert ctx.gradients()[x] == [4.0 * times]


async def test_a_local_backward_says_what_to_call_instead(stage: Stage) -> None:
    x = leaf(2.0)
    async with stage.cluster.dist_autograd() as ctx:
        loss = (await stage.cluster.rpc_async(W0, functions.twice, (x,))).sum()
        with pytest.raises(AutogradError, match=r"goes on in worker-0: call `await ctx\.backward"):
            loss.backward(retain_graph=True)
        await ctx.backward([loss])
        assert ctx.gradients()[x] == [2.0] and x.grad is None


async def test_a_tensor_of_another_context(stage: Stage) -> None:
    rpc, x = stage.cluster.rpc_async, leaf(2.0)
    async with stage.cluster.dist_autograd() as one:
        y = await rpc(W0, functions.twice, (x,))
        async with stage.cluster.dist_autograd() as two:
            loss = ((await rpc(W0, functions.twice, (x,))) * y).sum()
            with pytest.raises(ContextMismatch, match=f"{one.id} of caller, but .* backward of .*{two.id}"):
                await two.backward([loss])
            sent_on = await rpc(W1, functions.twice, (y,))  # it left in the inner one
            with pytest.raises(ContextMismatch, match="inside the context in which it was asked for"):
                await two.backward([sent_on.sum()])
        await one.backward([y.sum()])
        assert one.gradients()[x] == [2.0]
    del loss, sent_on


# What travels


async def test_no_gradients_inside_no_grad_and_outside_of_contexts(stage: Stage) -> None:
    cluster, x = stage.cluster, leaf(2.0)
    assert not await cluster.rpc_async(W0, functions.requires_grad, (x,))
    assert not (await cluster.remote(W0, Layer, (3.0,)).rpc_async().forward(x)).requires_grad
    async with cluster.dist_autograd() as ctx:
        assert await cluster.rpc_async(W0, functions.requires_grad, (x,))
        with no_grad():
            assert not await cluster.rpc_async(W0, functions.requires_grad, (x,))
            y = await cluster.rpc_async(W0, functions.twice, (x,))
            layer = cluster.remote(W0, Layer, (3.0,))
            assert not (await layer.rpc_async().forward(x)).requires_grad
        assert not y.requires_grad
        await ctx.backward([((await cluster.rpc_async(W0, functions.twice, (x,))) * y).sum()])
        assert ctx.gradients()[x] == [2.0 * 4.0]


async def test_a_hook_may_change_the_dtype_of_what_goes_back(stage: Stage) -> None:
    x = leaf(1.0, dtype=np.dtype(np.float32))
    async with stage.cluster.dist_autograd() as ctx:
        y = await stage.cluster.rpc_async(W0, functions.twice, (x,))
        y.register_hook(lambda gradient: gradient * np.float64(0.5))
        await ctx.backward([y.sum()])
        assert ctx.gradients()[x].dtype == np.float32 and ctx.gradients()[x] == [1.0]


async def test_a_context_may_be_left_in_another_task(stage: Stage) -> None:
    ctx, x = stage.cluster.dist_autograd(), leaf(1.0)
    await asyncio.create_task(ctx.__aenter__())
    with ctx.inside():
        await ctx.backward([(await stage.cluster.rpc_async(W0, functions.twice, (x,))).sum()])
    await asyncio.create_task(ctx.__aexit__(None, None, None))
    with pytest.raises(ContextClosed):
        ctx.gradients()


async def test_a_backward_that_waits_too_long_for_its_turn_harms_no_other(stage: Stage) -> None:
    x = leaf(1.0)
    async with stage.cluster.dist_autograd() as ctx:
        y = await stage.cluster.rpc_async(W0, functions.twice, (x,))
        release = threading.Event()
        y.register_hook(lambda gradient: release.wait(20) and None)
        first = asyncio.create_task(ctx.backward([y.sum()]))
        await asyncio.sleep(0.05)
        with pytest.raises(DeadlineExceeded, match="another backward"):
            await ctx.backward([(x * 2.0).sum()], timeout=0.1)
        release.set()
        await first
        assert ctx.gradients()[x] == [2.0]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
async def test_gradients_have_the_dtype_of_their_leaf(stage: Stage, dtype: str) -> None:
    kind = np.dtype(ml_dtypes.bfloat16) if dtype == "bfloat16" else np.dtype(dtype)
    x = leaf(1.0, 2.0, dtype=kind)
    layer = stage.cluster.remote(W0, Layer, (3.0, 0.5), {"dtype": dtype})
    async with stage.cluster.dist_autograd() as ctx:
        y = await layer.rpc_async().forward(x)
        z = await stage.cluster.rpc_async(W1, functions.add, (y, y))
        assert z.dtype == kind
        await ctx.backward([(z + y).sum()])
        found, there = ctx.gradients()[x], await layer.rpc_async().gradient(tuple(ctx.id))
    assert found.dtype == there.dtype == kind
    np.testing.assert_array_equal(found.astype("float64"), [9.0, 1.5])
    np.testing.assert_array_equal(there.astype("float64"), [3.0, 6.0])


async def refused_with_references(stage: Stage) -> None:
    cluster = stage.cluster
    layer, other = (cluster.remote(W0, Layer, (number,)) for number in (2.0, 3.0))
    await asyncio.gather(layer.confirmed_by_owner(), other.confirmed_by_owner())
    async with cluster.dist_autograd():
        cluster.dist.release(next(iter(cluster.dist.contexts)).id)
        for call in (
            lambda: cluster.rpc_async(W1, functions.fetch_and_double, (other,)),
            lambda: cluster.rpc_stream(W1, functions.each_of, (other,)),
            lambda: cluster.remote(W1, functions.fetch_and_double, (other,)),
            lambda: layer.rpc_async().forward(other),
            lambda: layer.remote().forward(other),
        ):
            with pytest.raises(ContextClosed, match="has ended"):
                call()


async def test_references_in_calls_that_an_ended_context_refuses(stage: Stage) -> None:
    """They stay where they are, and nothing holds them once they are dropped here."""
    await refused_with_references(stage)
    async with asyncio.timeout(10):
        while gc.collect() or await stage.cluster.rrefs.list_of(W0):  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_large_tensors(stage: Stage) -> None:
    """Beyond what is inside a frame, and what is copied."""
    x = psf.tensor(np.random.default_rng(1).normal(size=600_000), requires_grad=True)
    async with stage.cluster.dist_autograd() as ctx:
        y = await stage.cluster.rpc_async(W0, functions.forward_to, ([W1], x))
        await ctx.backward([(y * y).sum()])
        found = ctx.gradients()[x]
    np.testing.assert_allclose(found, 32.0 * x.numpy(), rtol=1e-12)
    assert found.flags.writeable and found.flags.c_contiguous
    del y


async def test_sparse_gradients(stage: Stage) -> None:
    table = stage.cluster.remote(W0, functions.Table, (10, 2))
    async with stage.cluster.dist_autograd() as ctx:
        one = await table.rpc_async().look_up(np.array([1, 3, 1]))
        two = await table.rpc_async().look_up(np.array([3, 9]))
        await ctx.backward([one.sum(), (two * 10.0).sum()])
        kind, dense = await table.rpc_async().gradient(tuple(ctx.id))
    assert kind == "SparseRows"
    expected = np.zeros((10, 2))
    expected[[1, 3, 9]] = np.array([[2.0], [11.0], [10.0]])
    np.testing.assert_array_equal(dense, expected)


async def test_results_that_are_no_floats(stage: Stage) -> None:
    x = leaf(1.0, 2.0)
    async with stage.cluster.dist_autograd() as ctx:
        y, z, rest = await stage.cluster.rpc_async(W0, functions.both, (x,))
        assert rest["both"][:2] == [1, "one"]
        np.testing.assert_array_equal(rest["both"][2], [0, 1, 2])
        counts = await stage.cluster.rpc_async(W0, functions.twice, (psf.tensor(np.array([1, 2])),))
        assert not counts.requires_grad
        await ctx.backward([(y * z).sum()])
        np.testing.assert_array_equal(ctx.gradients()[x], [12.0, 24.0])


@pytest.mark.parametrize("name", ["pieces", "pieces_later"])
async def test_generators(stage: Stage, name: str) -> None:
    layer = stage.cluster.remote(W0, Layer, (3.0,))
    async with stage.cluster.dist_autograd() as ctx:
        pieces = [piece async for piece in getattr(layer.rpc_stream(), name)(5)]
        await ctx.backward([ops.stack(pieces).sum()])
        assert await layer.rpc_async().gradient(tuple(ctx.id)) == [0.0 + 1 + 2 + 3 + 4]


async def test_a_generator_that_is_left_early(stage: Stage) -> None:
    layer = stage.cluster.remote(W0, Layer, (3.0,))
    async with stage.cluster.dist_autograd() as ctx:
        async with aclosing(layer.rpc_stream().pieces_later(1_000)) as pieces:
            async for piece in pieces:
                if float(piece.detach().sum()) == 6.0:
                    break
        await ctx.backward([piece.sum()])
        assert await layer.rpc_async().gradient(tuple(ctx.id)) == [2.0]
