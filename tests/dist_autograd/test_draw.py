"""The picture is made of what all processes say that calls went to, directly or from others."""

import asyncio

import numpy as np
import pytest

from psframework.autograd import tensor
from psframework.dist_autograd.context import Context
from psframework.dist_autograd.draw import draw
from psframework.dist_autograd.ids import ContextId, TensorsId
from psframework.dist_autograd.pairs import Sent
from psframework.errors import ArgumentError, ContextClosed, PeerLost
from psframework.proto.v1 import dist_autograd_pb2 as pb
from psframework.rpc.deadline import Deadline


class Crew:
    """This process, and what others say of theirs."""

    name = "trainer"

    def __init__(self, **replies):
        self.replies = replies
        self.asked = []

    def outline_of(self, name, id, limit, deadline):
        self.asked.append((name, id, limit, deadline))
        future = asyncio.get_running_loop().create_future()
        reply = self.replies[name]
        if isinstance(reply, BaseException):
            future.set_exception(reply)
        else:
            future.set_result(reply)
        return future


def context(*peers, tensors=1):
    own = Context(ContextId(1, 5), "trainer")
    own.peers = dict.fromkeys(peers)
    for number in range(tensors):
        sent = own.sent[TensorsId(1, number)] = Sent(TensorsId(1, number), "w0", "f")
        sent.add(tensor(np.ones(3), True))
    return own


def reply(*peers, nodes=("leaf",)):
    return pb.OutlineReply(nodes=[pb.GraphNode(name=name) for name in nodes], peers=peers)


def drawing(crew, own, path=None, roots=None, names=()):
    return draw(crew, own, path, roots, names, 60, Deadline.after(9))


async def test_all_that_the_context_reached_are_asked_once(tmp_path):
    crew = Crew(w0=reply("w1", "trainer", "w2"), w1=reply("w0", "w3"), w2=reply("w3"), w3=reply(nodes=()))
    shown = await drawing(crew, context("w0"), tmp_path / "a" / "b.svg")
    assert [name for name, *_ in crew.asked] == ["w0", "w1", "w2", "w3"]
    assert {(id, limit) for _, id, limit, _ in crew.asked} == {(ContextId(1, 5), 60)}
    assert all(f">{name}</text>" in shown.svg for name in ("trainer", "w0", "w1", "w2"))
    assert ">w3</text>" not in shown.svg, "it has nothing to show"
    assert "context 1.5 of trainer: 4 processes" in shown.svg
    assert (tmp_path / "a" / "b.svg").read_text() == shown.svg


async def test_who_does_not_answer_is_shown_with_the_reason():
    lost = PeerLost("w0 is gone", peer="w0", reason="closed", may_have_run=False)
    shown = await drawing(Crew(w0=lost, w1=reply()), context("w0", "w1"))
    assert "w0 is gone" in shown.svg and ">w1</text>" in shown.svg


@pytest.mark.parametrize("input", [0, 1, 2**32 - 1])
async def test_a_graph_that_can_not_be_read_harms_nothing(input):
    wrong = pb.OutlineReply(nodes=[pb.GraphNode(name="exp", inputs=[input])])
    shown = await drawing(Crew(w0=wrong), context("w0"))
    assert "it answered with a graph that" in shown.svg and ">exp<" not in shown.svg


async def test_nobody_is_asked_for_a_picture_that_can_not_be_written(tmp_path):
    crew = Crew(w0=reply())
    with pytest.raises(ArgumentError, match=r"x\.gif' can't be written: .*\.svg"):
        await drawing(crew, context("w0"), tmp_path / "x.gif")
    assert not crew.asked and not list(tmp_path.iterdir())


async def test_an_error_of_ours_is_not_hidden():
    with pytest.raises(ZeroDivisionError):
        await drawing(Crew(w0=ZeroDivisionError()), context("w0"))


async def test_what_is_alive_here_or_the_roots_alone_with_names_of_leaves():
    own = context(tensors=0)
    got = own.arriving(TensorsId(2, 1), ("w0", 2), "f").take(0, np.ones(3))
    w = tensor(np.ones(3), True)
    one, other = (got * w).sum(), (got + w).exp()
    everything = (await drawing(Crew(), own, names={"w": w})).svg
    assert all(f">{name}</text>" in everything for name in ("sum", "multiply", "exp", "add", "w"))
    for roots in (one, [one]):
        one_root = (await drawing(Crew(), own, roots=roots, names=[("w", w)])).svg
        assert all(f">{name}</text>" in one_root for name in ("sum", "multiply", "w"))
        assert ">exp</text>" not in one_root
    assert other is not None


@pytest.mark.parametrize("when", ["before others are asked", "while they answer"])
async def test_a_context_that_ends_meanwhile_is_closed(monkeypatch, when):
    own = context("w0")

    def end(*args, **kwargs):
        own.end("has ended")
        return pb.OutlineReply()

    crew = Crew(w0=reply())
    if when == "before others are asked":
        monkeypatch.setattr("psframework.dist_autograd.draw.outline", end)
    else:
        ask = crew.outline_of
        crew.outline_of = lambda *args: (end(), ask(*args))[1]
    with pytest.raises(ContextClosed, match="has ended"):
        await drawing(crew, own)
    assert len(crew.asked) == (when == "while they answer")


async def test_nothing_to_draw():
    with pytest.raises(ArgumentError, match="no tensor that requires grad has travelled"):
        await drawing(Crew(w0=reply(nodes=())), context("w0", tensors=0))
    for roots in ([tensor(np.ones(1))], [None], tensor(np.ones(1))):
        with pytest.raises(ArgumentError, match="requires grad"):
            await drawing(Crew(), context(), roots=roots)
