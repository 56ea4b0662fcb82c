"""One process's part of a backward, with a network that the test plays."""

import asyncio
from threading import get_ident
from typing import Any

import numpy as np
import pytest

from psframework.autograd.engine import start
from psframework.autograd.tensor import Tensor
from psframework.dist_autograd import pace
from psframework.dist_autograd.backward import Backward
from psframework.dist_autograd.context import Context, Contexts
from psframework.dist_autograd.ids import TensorsId
from psframework.dist_autograd.pace import Pace
from psframework.dist_autograd.pairs import Received, Sent
from psframework.errors import AutogradError, ContextClosed, PeerLost, WireError
from psframework.proto.v1 import dist_autograd_pb2 as pb
from psframework.rpc.deadline import Deadline

ME, BOB, EVE = 7, 8, 9


@pytest.fixture(autouse=True, params=["in the thread", "at once"])
def where(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways in which parts run."""
    if request.param == "at once":
        monkeypatch.setattr(pace, "SURE", 0)


class Net:
    """Keeps what was asked, and the futures of the answers."""

    name, incarnation = "me", ME

    def __init__(self) -> None:
        self.pace = Pace()
        self.discovered: list[tuple[tuple[str, int], pb.DiscoverRequest, asyncio.Future[Any]]] = []
        self.passed: list[tuple[Received, Any, asyncio.Future[Any]]] = []

    def discover(self, peer: tuple[str, int], request: Any, deadline: Deadline) -> asyncio.Future[Any]:
        self.discovered.append((peer, request, asyncio.get_running_loop().create_future()))
        return self.discovered[-1][-1]

    def pass_back(
        self, message: Received, request: Any, gradients: Any, deadline: Deadline
    ) -> asyncio.Future[Any]:
        self.passed.append((message, gradients, asyncio.get_running_loop().create_future()))
        return self.passed[-1][-1]


@pytest.fixture
def context() -> Context:
    return Contexts(ME).open("me")


def came(context: Context, number: int, name: str, incarnation: int) -> Tensor:
    message = context.arriving(TensorsId(incarnation, number), (name, incarnation), "mod.fn")
    return message.take(0, np.ones(2))


def goes(context: Context, number: int, tensor: Tensor) -> Sent:
    sent = context.sent[TensorsId(ME, number)] = Sent(TensorsId(ME, number), "bob", "mod.on")
    sent.add(tensor)
    return sent


def begin(context: Context, *, fast: bool = False) -> tuple[Backward, Net]:
    net = Net()
    return Backward(context, pb.BackwardId(number=1, fast=fast), net), net


async def until(condition: Any) -> None:
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.001)


async def test_each_sender_is_asked_once_about_all_that_came_from_it(context: Context) -> None:
    values = [came(context, 1, "bob", BOB), came(context, 2, "bob", BOB), came(context, 3, "eve", EVE)]
    gradients, _ = start((values[0] + values[1] + values[2]).sum(), None)
    backward, net = begin(context)
    asking = asyncio.create_task(backward.discover_from(gradients, Deadline.after(5)))
    await until(lambda: len(net.discovered) == 2)
    found = {
        peer: sorted((part.message.sender, part.message.counter, *part.tensors) for part in request.parts)
        for peer, request, _ in net.discovered
    }
    assert found == {("bob", BOB): [(BOB, 1, 0), (BOB, 2, 0)], ("eve", EVE): [(EVE, 3, 0)]}
    net.discovered[0][2].set_result(None)
    await asyncio.sleep(0)
    assert not asking.done()  # until everybody knows
    net.discovered[1][2].set_result(None)
    await asking


async def test_when_one_can_not_be_asked_the_others_are_not_waited_for(context: Context) -> None:
    values = [came(context, 1, "bob", BOB), came(context, 2, "eve", EVE)]
    gradients, _ = start((values[0] + values[1]).sum(), None)
    backward, net = begin(context)
    asking = asyncio.create_task(backward.discover_from(gradients, Deadline.after(5)))
    await until(lambda: len(net.discovered) == 2)
    net.discovered[0][2].set_exception(PeerLost("bob is gone", peer="bob"))
    with pytest.raises(PeerLost, match="bob is gone"):
        await asking
    assert net.discovered[1][2].cancelled()


async def test_it_is_over_when_all_that_it_caused_is(context: Context) -> None:
    x = Tensor(np.ones(2), requires_grad=True)
    root = (came(context, 1, "bob", BOB) * x).sum()
    gradients, heap = start(root, None)
    backward, net = begin(context)
    asking = asyncio.create_task(backward.discover_from(gradients, Deadline.after(5)))
    await until(lambda: net.discovered)
    net.discovered[0][2].set_result(None)
    await asking
    backward.start(gradients, heap)
    running = asyncio.create_task(backward.engage(Deadline.after(5)))
    await until(lambda: net.passed)
    message, passed, answer = net.passed[0]
    assert (message.peer, [gradient.tolist() for gradient in passed]) == (("bob", BOB), [[1.0, 1.0]])
    await asyncio.sleep(0.01)
    assert not running.done() and backward.engaged
    answer.set_result(pb.PassReply())
    await running
    assert not backward.engaged
    np.testing.assert_array_equal(context.gradients[x], [1.0, 1.0])


async def test_gradients_that_come_while_it_runs_are_part_of_it(context: Context) -> None:
    x = Tensor(np.ones(2), requires_grad=True)
    sent = goes(context, 1, x * 3.0)
    root = came(context, 2, "bob", BOB).sum()
    gradients, heap = start(root, None)
    backward, net = begin(context)
    asking = asyncio.create_task(backward.discover_from(gradients, Deadline.after(5)))
    await until(lambda: net.discovered)
    request = pb.DiscoverRequest()
    request.parts.add(tensors=[0]).message.sender = ME
    request.parts[0].message.counter = 1
    await backward.discover(request, Deadline.after(5))
    net.discovered[0][2].set_result(None)
    await asking
    backward.start(gradients, heap)
    running = asyncio.create_task(backward.engage(Deadline.after(5)))
    await until(lambda: net.passed)
    backward.give(sent, (np.full(2, 2.0),))
    net.passed[0][2].set_result(pb.PassReply())
    await running
    np.testing.assert_array_equal(context.gradients[x], [6.0, 6.0])


@pytest.mark.parametrize("how", ["answer", "stop", "cancel"])
async def test_an_error_ends_it_and_what_it_waits_for(context: Context, how: str) -> None:
    gradients, heap = start((came(context, 1, "bob", BOB) + came(context, 2, "eve", EVE)).sum(), None)
    backward, net = begin(context, fast=True)
    backward.start(gradients, heap)
    running = asyncio.create_task(backward.engage(Deadline.after(5)))
    await until(lambda: len(net.passed) == 2)
    expected: type[BaseException] = ContextClosed
    if how == "answer":
        expected = PeerLost
        net.passed[0][2].set_exception(PeerLost("bob is gone", peer="bob"))
    elif how == "stop":
        backward.stop(ContextClosed("it has ended"))
    else:
        expected = asyncio.CancelledError
        running.cancel()
    with pytest.raises(expected):
        await running
    assert net.passed[1][2].cancelled()
    assert not backward.engaged


async def test_what_a_rule_raises_says_where(context: Context) -> None:
    x = Tensor(np.ones(2), requires_grad=True)
    x.register_hook(lambda gradient: 1 / 0)
    gradients, heap = start((x * 2.0).sum(), None)
    backward, _ = begin(context)
    backward.start(gradients, heap)
    with pytest.raises(ZeroDivisionError, match=r"\(in a backward on me\)"):
        await backward.engage(Deadline.after(5))


async def test_gradients_that_can_not_be_right_are_refused_before_anything_runs(context: Context) -> None:
    sent = goes(context, 1, Tensor(np.ones(2), requires_grad=True))
    backward, _ = begin(context)
    with pytest.raises(WireError, match="2 gradients"):
        backward.give(sent, (np.ones(2), None))
    await backward.engage(Deadline.after(5))
    assert context.gradients == {}


async def test_a_fast_backward_reports_what_got_nothing(context: Context) -> None:
    x = Tensor(np.ones(2), requires_grad=True)
    goes(context, 1, x * 1.0)
    came(context, 2, "eve", EVE)
    used = came(context, 3, "bob", BOB)
    gradients, heap = start((used + x).sum(), None)
    backward, net = begin(context, fast=True)
    backward.start(gradients, heap)
    running = asyncio.create_task(backward.engage(Deadline.after(5)))
    await until(lambda: len(net.passed) == 2)
    answers = {message.peer[0]: answer for message, _, answer in net.passed}
    for serial, wait in ((2, "newer"), (1, "older")):
        report = pb.Report(incarnation=BOB, serial=serial, waits=[wait])
        answers["bob" if serial == 2 else "eve"].set_result(pb.PassReply(reports=[report]))
        await asyncio.sleep(0)
    await running
    assert set(backward.reports) == {ME, BOB}
    assert [str(message) for message, (gradient,), _ in net.passed if gradient is None] == [
        "message 9.2 of eve, about mod.fn"
    ]
    assert backward.waits == [
        "message 9.2 of eve, about mod.fn",
        "message 7.1 to bob, about mod.on",
        "newer",
    ]


async def test_a_fast_backward_names_first_what_others_wait_for(context: Context) -> None:
    x = Tensor(np.ones(2), requires_grad=True)
    for number in (1, 2, 3):
        goes(context, number, x * 1.0)
    gradients, heap = start((came(context, 4, "bob", BOB) + x).sum(), None)
    backward, net = begin(context, fast=True)
    backward.start(gradients, heap)
    running = asyncio.create_task(backward.engage(Deadline.after(5)))
    await until(lambda: net.passed)
    there = [
        pb.Report(incarnation=EVE, serial=1, waits=["eve's newest", "eve's second"]),
        pb.Report(incarnation=BOB, serial=1, unused=["nothing used it"]),
    ]
    net.passed[0][2].set_result(pb.PassReply(reports=there))
    await running
    assert backward.waits == [
        "nothing used it",
        "message 7.3 to bob, about mod.on",
        "eve's newest",
        "message 7.2 to bob, about mod.on",
        "eve's second",
        "message 7.1 to bob, about mod.on",
    ]


async def test_a_freed_graph_is_told_in_discovery(context: Context) -> None:
    root = (Tensor(np.ones(2), requires_grad=True) * 2.0).sum()
    gradients, _ = start(root, None)
    root.backward()
    backward, net = begin(context)
    with pytest.raises(AutogradError, match="freed"):
        await backward.discover_from(gradients, Deadline.after(5))
    assert not net.discovered and not net.passed


async def test_users_code_never_runs_on_the_loop(context: Context) -> None:
    x = Tensor(np.ones(2), requires_grad=True)
    threads = []
    x.register_hook(lambda gradient: threads.append(get_ident()))
    gradients, heap = start((x * 2.0).sum(), None)
    backward, _ = begin(context)
    await backward.discover_from(gradients, Deadline.after(5))
    backward.start(gradients, heap)
    await backward.engage(Deadline.after(5))
    assert len(threads) == 1 and threads[0] != get_ident()
