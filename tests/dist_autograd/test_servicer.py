"""DistAutogradService on the wire: what it takes, and from whom."""

from collections.abc import Callable
from typing import Any

import dist_functions as functions
import grpc
import numpy as np
import pytest
from crew import until
from dist_crew import Crew, Member

from psframework.autograd.tensor import Tensor
from psframework.dist_autograd.handle import DistContext
from psframework.errors import ContextClosed, PermissionDenied, WireError
from psframework.proto.v1 import dist_autograd_pb2 as pb
from psframework.proto.v1.dist_autograd_pb2_grpc import DistAutogradServiceStub
from psframework.proto.v1.error_pb2 import ErrorDetail
from psframework.rpc.serve import serve
from psframework.rpc.status import error_to_detail
from psframework.rpc.values import arguments
from psframework.rpc.values.journey import Journey
from psframework.testing.workers import PLAINTEXT, QUIET

HUGE = (1 << 64) - 1


def named(ctx: DistContext, number: int = 1, **flags: bool) -> pb.BackwardId:
    id = pb.BackwardId(number=number, **flags)
    id.context.creator, id.context.counter = ctx.id
    return id


def passing(id: pb.BackwardId, message: tuple[int, int], gradients: Any) -> pb.PassRequest:
    request = pb.PassRequest(backward=id)
    request.message.sender, request.message.counter = message
    request.gradients.CopyFrom(arguments.encode(gradients, Journey()))
    return request


async def test_strangers_without_a_session(crew: Crew) -> None:
    bob = await crew.hire("bob")
    agent = bob.worker.agent
    async with (
        serve(agent.handlers(), bind="127.0.0.1:0", security=PLAINTEXT, options=QUIET) as server,
        grpc.aio.insecure_channel(server.address) as channel,
    ):
        stub: Any = DistAutogradServiceStub(channel)
        for call, request in (
            (stub.Discover, pb.DiscoverRequest()),
            (stub.Pass, pb.PassRequest()),
            (stub.Release, pb.ReleaseRequest()),
            (stub.Live, pb.LiveRequest()),
            (stub.Outline, pb.OutlineRequest()),
        ):
            with pytest.raises(grpc.aio.AioRpcError, match="session"):
                await call(request, timeout=5)


async def test_a_creator_says_what_lives(crew: Crew) -> None:
    ann, bob = await crew.hire("ann"), await crew.hire("bob")
    async with ann.context() as ctx:
        await ann.rpc("bob", functions.twice, 1.0)
        request = pb.LiveRequest()
        for counter in (ctx.id.counter, ctx.id.counter + 5, HUGE):
            request.contexts.add(creator=ctx.id.creator, counter=counter)
        reply = await bob.ask("ann", "Live", request, pb.LiveReply)
        assert [(each.creator, each.counter) for each in reply.contexts] == [ctx.id]
    assert not (await bob.ask("ann", "Live", request, pb.LiveReply)).contexts


async def inside(ann: Member) -> tuple[Tensor, Tensor]:
    x = Tensor(np.ones(2), requires_grad=True)
    return x, (await ann.rpc("bob", functions.twice, x)).sum()


WRONG: list[tuple[str, Callable[[DistContext, tuple[int, int]], Any], type[Exception], str]] = [
    ("Discover", lambda ctx, id: discover(named(ctx), (id[0], HUGE), [0]), WireError, "no message"),
    ("Discover", lambda ctx, id: discover(named(ctx), id, [1]), WireError, "has 1 tensors"),
    ("Discover", lambda ctx, id: discover(named(ctx), id, [(1 << 32) - 1]), WireError, "has 1 tensors"),
    ("Discover", lambda ctx, id: pb.DiscoverRequest(backward=named(ctx, 99)), WireError, "of nothing"),
    ("Discover", lambda ctx, id: discover(stranger(), id, [0]), ContextClosed, "not known here"),
    ("Pass", lambda ctx, id: passing(named(ctx), (HUGE, HUGE), (None,)), WireError, "no message"),
    ("Pass", lambda ctx, id: passing(named(ctx), id, 1.0), WireError, "as a tuple"),
    ("Pass", lambda ctx, id: passing(named(ctx), id, (np.ones(2), None)), WireError, "2 gradients"),
    ("Pass", lambda ctx, id: passing(named(ctx), id, (np.ones(3),)), WireError, r"is \(3,\) float64"),
    ("Pass", lambda ctx, id: passing(named(ctx), id, (np.ones(2, "f4"),)), WireError, "float32"),
    ("Pass", lambda ctx, id: passing(named(ctx), id, ("no",)), WireError, "is <class 'str'>"),
    ("Pass", lambda ctx, id: passing(stranger(), id, (None,)), ContextClosed, "not known here"),
]


def stranger() -> pb.BackwardId:
    return pb.BackwardId(context=pb.ContextId(creator=HUGE, counter=HUGE), number=(1 << 32) - 1)


def discover(id: pb.BackwardId, message: tuple[int, int], tensors: list[int]) -> pb.DiscoverRequest:
    request = pb.DiscoverRequest(backward=id)
    request.parts.add(tensors=tensors)
    request.parts[0].message.sender, request.parts[0].message.counter = message
    return request


async def test_messages_that_can_not_be_right_harm_nothing(crew: Crew) -> None:
    ann, bob = await crew.hire("ann"), await crew.hire("bob")
    async with ann.context() as ctx:
        x, loss = await inside(ann)
        ((id, _),) = next(iter(bob.dist.contexts)).sent.items()
        for method, make, error, text in WRONG:
            with pytest.raises(error, match=text):
                await ann.ask("bob", method, make(ctx, id), getattr(pb, f"{method}Reply"))
        await ctx.backward(loss)
        np.testing.assert_array_equal(ctx.gradients()[x], [2.0, 2.0])
    await until(lambda: not len(bob.dist.contexts))


def pb_error(text: str) -> ErrorDetail:
    return error_to_detail(ValueError(text))


async def test_contexts_of_others(crew: Crew) -> None:
    """Eve, whom nobody called in this context, learns the names of all that is in it."""
    ann, bob, eve = [await crew.hire(name) for name in ("ann", "bob", "eve")]
    await eve.rpc("bob", functions.twice, 1.0)
    async with ann.context() as ctx:
        x, loss = await inside(ann)
        ((id, _),) = next(iter(bob.dist.contexts)).sent.items()
        release = pb.ReleaseRequest(contexts=[named(ctx).context], error=pb_error("so says eve"))
        for method, request, text in (
            ("Discover", discover(named(ctx, 99), id, [0]), "did not go to eve"),
            ("Pass", passing(named(ctx, 99), id, (np.ones(2),)), "did not go to eve"),
            ("Release", release, "eve can't end"),
        ):
            with pytest.raises(PermissionDenied, match=text):
                await eve.ask("bob", method, request, getattr(pb, f"{method}Reply"))
        ahead = pb.ReleaseRequest(below=HUGE)
        for counter in range(ctx.id.counter + 1, ctx.id.counter + 5):
            ahead.contexts.add(creator=ctx.id.creator, counter=counter)
        await eve.ask("bob", "Release", ahead, pb.ReleaseReply)
        await ctx.backward(loss)
        np.testing.assert_array_equal(ctx.gradients()[x], [2.0, 2.0])
    async with ann.context() as ctx:  # one of those that eve spoke of
        x, loss = await inside(ann)
        await ctx.backward(loss)
    await until(lambda: not len(bob.dist.contexts))


async def test_gradients_that_come_twice_or_are_not_waited_for(crew: Crew) -> None:
    """From one that has a part in the context: the context fails, and nothing else."""
    ann, bob = await crew.hire("ann"), await crew.hire("bob")
    for discovered in (False, True):
        async with ann.context() as ctx:
            _, loss = await inside(ann)
            ((id, _),) = next(iter(bob.dist.contexts)).sent.items()
            request = passing(named(ctx), id, (np.ones(2),))
            if discovered:
                await ctx.backward(loss, retain_graph=True)
            with pytest.raises(WireError, match=r"(came twice|not part of this backward).*on bob"):
                await ann.ask("bob", "Pass", request, pb.PassReply)
            assert not len(bob.dist.contexts)
            with pytest.raises(ContextClosed):
                await inside(ann)
    async with ann.context() as ctx:
        x, loss = await inside(ann)
        await ctx.backward(loss)
        np.testing.assert_array_equal(ctx.gradients()[x], [2.0, 2.0])


async def test_only_its_creator_ends_a_context_for_itself(crew: Crew) -> None:
    ann, bob = await crew.hire("ann"), await crew.hire("bob")
    async with ann.context() as ctx:
        x, loss = await inside(ann)
        mine = next(iter(ann.dist.contexts))
        mine.callers.add(bob.dist.incarnation)  # as if it had called back
        request = pb.ReleaseRequest(contexts=[named(ctx).context])
        with pytest.raises(PermissionDenied, match="bob can't end"):
            await bob.ask("ann", "Release", request, pb.ReleaseReply)
        await ctx.backward(loss)
        np.testing.assert_array_equal(ctx.gradients()[x], [2.0, 2.0])


async def test_why_a_context_failed_is_passed_on(crew: Crew) -> None:
    ann, bob, eve = [await crew.hire(name) for name in ("ann", "bob", "eve")]
    async with ann.context() as ctx:
        await inside(ann)
        there = next(iter(bob.dist.contexts))
        there.peers["eve"] = None
        beyond = eve.dist.contexts.enter(ctx.id, "ann")
        beyond.callers.add(bob.dist.incarnation)
        release = pb.ReleaseRequest(contexts=[named(ctx).context], error=pb_error("no money"))
        await ann.ask("bob", "Release", release, pb.ReleaseReply)
        await until(lambda: beyond.ended is not None)
        assert beyond.ended == "has failed: ValueError: no money"
