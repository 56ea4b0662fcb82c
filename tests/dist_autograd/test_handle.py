"""A context, as users see it, over real sockets."""

import asyncio
from pathlib import Path
from typing import Any

import dist_functions as functions
import numpy as np
import pytest
from crew import until
from dist_crew import Crew, Member

from psframework.autograd.tensor import Tensor
from psframework.dist_autograd.handle import gradients
from psframework.errors import ArgumentError, AutogradError, ContextClosed, DeadlineExceeded


def leaf(*values: float) -> Tensor:
    return Tensor(np.array(values), requires_grad=True)


async def pair(crew: Crew) -> tuple[Member, Member]:
    return await crew.hire("ann"), await crew.hire("bob")


async def test_gradients_are_in_the_context_and_not_in_grad(crew: Crew) -> None:
    ann, _ = await pair(crew)
    x, y = leaf(1.0, 2.0), leaf(3.0, 4.0)
    async with ann.context() as ctx:
        total = await ann.rpc("bob", functions.add, x, await ann.rpc("bob", functions.twice, y))
        await ctx.backward((total * x).sum())
        found = ctx.gradients()
    np.testing.assert_array_equal(found[x], [8.0, 12.0])
    np.testing.assert_array_equal(found[y], [2.0, 4.0])
    assert x.grad is None and y.grad is None


async def test_gradients_of_the_context_at_hand(crew: Crew) -> None:
    """Where a function that was called from inside runs, too: there it has no DistContext."""
    ann, _ = await pair(crew)
    x = leaf(1.0, 2.0)
    with pytest.raises(ContextClosed, match="no context here"):
        gradients()
    async with ann.context() as ctx:
        await ctx.backward((await ann.rpc("bob", functions.twice, x)).sum())
        np.testing.assert_array_equal(gradients()[x], [2.0, 2.0])
        np.testing.assert_array_equal((await asyncio.to_thread(gradients))[x], [2.0, 2.0])
        gradients().clear()
        assert list(gradients()) == [x]
    with pytest.raises(ContextClosed):
        gradients()


async def test_a_picture_of_both_processes(crew: Crew, tmp_path: Path) -> None:
    ann, _ = await pair(crew)
    x = leaf(1.0, 2.0)
    async with ann.context() as ctx:
        loss = (await ann.rpc("bob", functions.twice, x)).sum()
        drawing = await ctx.draw(tmp_path / "graph.svg", roots=[loss], names={"x": x})
        assert (tmp_path / "graph.svg").read_text() == drawing.svg
        assert all(f">{name}</text>" in drawing.svg for name in ("ann", "bob", "x", "multiply", "sum"))
    with pytest.raises(ContextClosed):
        await ctx.draw(None)


async def test_several_roots_and_several_backwards_add_up(crew: Crew) -> None:
    ann, _ = await pair(crew)
    x = leaf(1.0, 2.0)
    async with ann.context() as ctx:
        first = (await ann.rpc("bob", functions.twice, x)).sum()
        second = (await ann.rpc("bob", functions.twice, x * x)).sum()
        await ctx.backward([first, second], retain_graph=True)
        np.testing.assert_array_equal(ctx.gradients()[x], [6.0, 10.0])
        await ctx.backward(first, mode="smart")
        np.testing.assert_array_equal(ctx.gradients()[x], [8.0, 12.0])


@pytest.mark.parametrize(
    ("roots", "mode", "error", "text"),
    [
        ([], "smart", ArgumentError, "no roots"),
        ([1.0], "smart", ArgumentError, "not float"),
        ([leaf(1.0, 2.0)], "smart", AutogradError, "no scalar"),
        ([Tensor(np.ones(()))], "smart", AutogradError, "outside of this context are constants"),
        ([leaf(1.0)], "slow", ArgumentError, "'smart' or 'fast'"),
    ],
)
async def test_roots_that_are_none(crew: Crew, roots: Any, mode: Any, error: type, text: str) -> None:
    ann = await crew.hire("ann")
    async with ann.context() as ctx:
        with pytest.raises(error, match=text):
            await ctx.backward(roots, mode=mode)
        x = leaf(3.0)
        await ctx.backward(x * x)  # it is none the worse
        np.testing.assert_array_equal(ctx.gradients()[x], [6.0])


async def test_a_context_is_for_one_block(crew: Crew) -> None:
    ann = await crew.hire("ann")
    ctx = ann.context()
    assert repr(ctx) == "<DistContext not entered>"
    for use in (lambda: ctx.id, ctx.gradients):
        with pytest.raises(ContextClosed, match="not entered"):
            use()
    async with ctx:
        assert repr(ctx) == f"<DistContext {ctx.id}>"
    with pytest.raises(ContextClosed, match="entered once"):
        await ctx.__aenter__()
    with pytest.raises(ContextClosed, match="has ended with its block: call"):
        ctx.gradients()
    with pytest.raises(ContextClosed, match="has ended"):
        await ctx.backward(leaf(1.0) * 2.0)


async def test_contexts_nest_and_do_not_mix(crew: Crew) -> None:
    ann, _ = await pair(crew)
    x = leaf(1.0, 2.0)
    async with ann.context() as outer:
        before = (await ann.rpc("bob", functions.twice, x)).sum()
        async with ann.context() as inner:
            await inner.backward((await ann.rpc("bob", functions.twice, x * x)).sum())
            np.testing.assert_array_equal(inner.gradients()[x], [4.0, 8.0])
        after = (await ann.rpc("bob", functions.twice, x)).sum()
        await outer.backward([before, after])
        np.testing.assert_array_equal(outer.gradients()[x], [4.0, 4.0])


async def test_a_deadline_ends_the_context(crew: Crew) -> None:
    ann, bob = await pair(crew)
    x = leaf(1.0, 2.0)
    gate = asyncio.Event()
    async with ann.context() as ctx:
        loss = (await ann.rpc("bob", functions.twice, x)).sum()
        (running,) = bob.dist.contexts
        assert running.id == ctx.id
        original, bob.dist.backward = bob.dist.backward, None  # type: ignore[method-assign]

        class Late:
            async def discover(self, *_: Any) -> None:
                await gate.wait()

        bob.dist.backward = lambda id: Late()  # type: ignore[method-assign,assignment]
        with pytest.raises(DeadlineExceeded, match="not done in time"):
            await ctx.backward(loss, timeout=0.1)
        with pytest.raises(ContextClosed, match="failed: its deadline passed"):
            ctx.gradients()
        bob.dist.backward = original  # type: ignore[method-assign]
    await until(lambda: len(bob.dist.contexts) == 0)


async def test_a_block_in_any_task_may_belong_to_a_context(crew: Crew) -> None:
    ann, _ = await pair(crew)
    x, contexts = leaf(1.0, 2.0), asyncio.Queue[Any]()

    async def elsewhere() -> Tensor:
        ctx = await contexts.get()
        with ctx.inside():
            twice = await ann.rpc("bob", functions.twice, x)
        outside = await ann.rpc("bob", functions.twice, x)
        assert isinstance(twice, Tensor) and twice.requires_grad
        assert not getattr(outside, "requires_grad", False)
        return twice

    task = asyncio.create_task(elsewhere())
    async with ann.context() as ctx:
        contexts.put_nowait(ctx)
        await ctx.backward((await task).sum())
        np.testing.assert_array_equal(ctx.gradients()[x], [2.0, 2.0])
    with pytest.raises(ContextClosed), ctx.inside():
        pass
