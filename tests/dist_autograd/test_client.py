"""The contexts of one connection, over real sockets."""

import asyncio

import dist_functions as functions
import numpy as np
import pytest
from crew import until
from dist_crew import Crew, Member

import psframework.dist_autograd.client as client
from psframework.autograd.tensor import Tensor
from psframework.dist_autograd.ids import ContextId
from psframework.errors import ContextClosed
from psframework.proto.v1 import dist_autograd_pb2 as pb
from psframework.rpc.deadline import Deadline


def sizes(member: Member) -> list[int]:
    return [len(member.dist.contexts), len(member.dist._running)]


async def loss_through(ann: Member, *names: str) -> Tensor:
    x = Tensor(np.ones(2), requires_grad=True)
    for name in names:
        x = await ann.rpc(name, functions.twice, x)
    return x.sum()


async def test_leaving_releases_a_context_wherever_it_went(crew: Crew) -> None:
    ann, bob, eve = [await crew.hire(name) for name in ("ann", "bob", "eve")]
    async with ann.context() as ctx:
        await ctx.backward(await loss_through(ann, "bob", "eve", "bob"))
        assert [len(member.dist.contexts) for member in (ann, bob, eve)] == [1, 1, 1]
    assert sizes(ann) == [0, 0]
    await until(lambda: sizes(bob) == sizes(eve) == [0, 0])


async def test_a_close_waits_until_others_know(crew: Crew) -> None:
    ann, bob = await crew.hire("ann"), await crew.hire("bob")
    ctx = ann.context()
    await ctx.__aenter__()
    await loss_through(ann, "bob")
    await ann.dist.close(5.0)
    assert sizes(ann) == sizes(bob) == [0, 0]
    with pytest.raises(ContextClosed, match="ended with its connection"):
        ctx.gradients()
    await ctx.__aexit__(None, None, None)


async def test_the_contexts_of_the_dead_end(crew: Crew) -> None:
    ann, bob = await crew.hire("ann"), await crew.hire("bob")
    async with ann.context():
        await loss_through(ann, "bob")
        crew.bury("ann", "stalled")  # lives on
        assert sizes(bob) == [1, 0]
        crew.bury("ann")
        assert sizes(bob) == [0, 0]
        with pytest.raises(ContextClosed, match="has ended"):
            await loss_through(ann, "bob")


async def test_creators_are_asked_what_lives(crew: Crew, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that nothing stays where the message that would have ended it was lost with a middleman."""
    monkeypatch.setattr(client, "ASK_SECONDS", 0.05)
    ann, bob = await crew.hire("ann"), await crew.hire("bob")
    async with ann.context() as ctx, ann.context() as other:
        await loss_through(ann, "bob")
        bob.dist.contexts.enter(ctx.id, "ann")
        await asyncio.sleep(0.2)
        assert other.id in bob.dist.contexts and ctx.id in bob.dist.contexts
        ann.dist.contexts.end(ctx.id)  # and tells nobody
        await until(lambda: ctx.id not in bob.dist.contexts)
        assert other.id in bob.dist.contexts


async def test_a_late_call_of_the_dead_is_forgotten(crew: Crew, monkeypatch: pytest.MonkeyPatch) -> None:
    """It came by a third member, after the membership had told of the creator's death."""
    monkeypatch.setattr(client, "ASK_SECONDS", 0.05)
    bob = await crew.hire("bob")
    for incarnation in (998, 999):
        bob.dist.contexts.enter(ContextId(incarnation, 1), "zoe")
    await asyncio.sleep(0.2)
    assert sizes(bob) == [2, 0]  # nobody knows, yet
    crew.book.ended.add(998)
    await until(lambda: [context.id.creator for context in bob.dist.contexts] == [999])


async def test_a_newer_backward_takes_the_place_of_an_older_one(crew: Crew) -> None:
    ann = await crew.hire("ann")
    async with ann.context() as ctx:
        first = pb.BackwardId(number=1)
        first.context.creator, first.context.counter = ctx.id
        second = pb.BackwardId(context=first.context, number=2)
        made = ann.dist.backward(first)
        assert ann.dist.backward(first) is made
        assert ann.dist.backward(second) is not made
        assert sizes(ann) == [1, 1]


async def test_what_failed_elsewhere_stops_a_backward_with_that_error(crew: Crew) -> None:
    """Not with the end of the context, which is told by another way and may come first."""
    ann, bob = await crew.hire("ann"), await crew.hire("bob")
    async with ann.context() as ctx:
        await loss_through(ann, "bob")
        id = pb.BackwardId(number=1)
        id.context.creator, id.context.counter = ctx.id
        backward = bob.dist.backward(id)
        backward._calls.add(asyncio.get_running_loop().create_future())
        engaged = asyncio.create_task(backward.engage(Deadline.after(5)))
        await asyncio.sleep(0)
        ann.dist.release(ctx.id, error=ValueError("no money"))
        with pytest.raises(ValueError, match="no money"):
            await engaged


async def test_discovery_takes_one_round_trip_for_each_hop(
    crew: Crew, monkeypatch: pytest.MonkeyPatch
) -> None:
    ann, _, _ = [await crew.hire(name) for name in ("ann", "bob", "eve")]
    asked: list[tuple[str, str, int]] = []
    discover = client.DistAutograd.discover

    def noted(self: client.DistAutograd, peer: tuple[str, int], request: pb.DiscoverRequest, until: Deadline):  # type: ignore[no-untyped-def]
        asked.append((self.name, peer[0], len(request.parts)))
        return discover(self, peer, request, until)

    monkeypatch.setattr(client.DistAutograd, "discover", noted)
    async with ann.context() as ctx:
        loss = await loss_through(ann, "bob", "eve")  # four messages, one after the other
        await ctx.backward(loss)
        assert [gradient.tolist() for gradient in ctx.gradients().values()] == [[4.0, 4.0]]
    assert asked == [("ann", "eve", 1), ("eve", "ann", 1), ("ann", "bob", 1), ("bob", "ann", 1)]
