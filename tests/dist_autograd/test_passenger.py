"""Tensors inside messages, and the context that calls carry."""

import asyncio
import struct
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from psframework.autograd.grad_mode import no_grad
from psframework.autograd.tensor import Tensor
from psframework.dist_autograd import passenger
from psframework.dist_autograd.context import Context, Contexts
from psframework.dist_autograd.passenger import PASSENGER
from psframework.errors import ContextClosed, WireError
from psframework.rpc.call import PeerInfo
from psframework.rpc.values import arguments
from psframework.rpc.values.journey import Journey, Outcome

ME, BOB = 1 << 40, (1 << 40) + 1


class Home:
    def __init__(self, incarnation: int) -> None:
        self.incarnation = incarnation
        self.contexts = Contexts(incarnation)

    def incarnation_of(self, name: str) -> int:
        return {"me": ME, "bob": BOB}.get(name, 0)


ME_INFO, BOB_INFO = (PeerInfo(name, "worker", "", number) for name, number in (("me", ME), ("bob", BOB)))


@pytest.fixture
def homes() -> Iterator[dict[str, Home]]:
    found = {"me": Home(ME), "bob": Home(BOB)}
    for home in found.values():
        PASSENGER.add(home)
    yield found
    for home in found.values():
        PASSENGER.remove(home)


@pytest.fixture
def inside(homes: dict[str, Home]) -> Iterator[Context]:
    context = homes["me"].contexts.open("me")
    token = passenger.enter(homes["me"], context)
    yield context
    passenger.leave(token)


def send(value: Any, journey: Journey | None = None) -> tuple[Any, Journey]:
    journey = journey or Journey(BOB_INFO)
    journey.about = "mod.fn"
    return arguments.encode(value, journey), journey


def take(message: Any, journey: Journey, sender: PeerInfo = ME_INFO) -> Any:
    arriving = Journey(sender, outgoing=False)
    arriving.about = journey.about
    return arguments.decode(message, [memoryview(bytes(part)) for part in journey.parts], arriving)


def test_a_tensor_keeps_its_graph_inside_a_context(homes: dict[str, Home], inside: Context) -> None:
    x = Tensor(np.arange(3.0), requires_grad=True)
    message, journey = send([x, x * 2.0, "and", Tensor(np.ones(2))])
    (sent,) = inside.sent.values()
    assert sent.node.edges[0] is x
    assert (sent.peer, sent.about, len(sent.node.edges)) == ("bob", "mod.fn", 2)
    there = homes["bob"].contexts.enter(inside.id, "me")
    one, two, _, constant = take(message, journey)
    assert one.requires_grad and two.requires_grad and not constant.requires_grad
    np.testing.assert_array_equal(two.numpy() if hasattr(two, "numpy") else two._data, [0.0, 2.0, 4.0])
    assert there.received[sent.id].peer == ("me", ME)
    assert sorted(there.received[sent.id].orders) == [0, 1]


def test_outside_of_one_it_is_a_constant(homes: dict[str, Home]) -> None:
    message, journey = send(Tensor(np.ones(3), requires_grad=True))
    assert not take(message, journey).requires_grad


def test_without_gradients_it_is_a_constant(inside: Context) -> None:
    with no_grad():
        message, journey = send(Tensor(np.ones(3), requires_grad=True))
    assert not take(message, journey).requires_grad
    assert not inside.sent


def test_a_message_that_never_left_is_forgotten(inside: Context) -> None:
    _, journey = send(Tensor(np.ones(3), requires_grad=True))
    journey.end(Outcome.REFUSED)
    assert not inside.sent
    _, journey = send(Tensor(np.ones(3), requires_grad=True))
    journey.end(Outcome.ANSWERED)
    assert len(inside.sent) == 1


def test_a_message_that_can_not_be_read_is_forgotten(homes: dict[str, Home]) -> None:
    context = homes["bob"].contexts.open("bob")
    for outcome, kept in ((Outcome.REFUSED, 0), (Outcome.ANSWERED, 1)):
        journey = Journey(ME_INFO, outgoing=False)
        for index in range(2):
            journey.luggage = [np.ones(2)]
            PASSENGER.arrive(bytes_of(context, index=index), journey)
        assert len(context.received) == 1
        journey.end(outcome)
        assert len(context.received) == kept


def test_a_call_is_part_of_the_context_it_is_made_in(homes: dict[str, Home], inside: Context) -> None:
    data = PASSENGER.leave("bob")
    assert list(inside.peers) == ["bob"]
    token = passenger.enter(homes["me"], inside)
    PASSENGER.enter(data, ME_INFO)
    there = passenger.current()
    assert there is not None and there is not inside
    assert (there.id, there.creator) == (inside.id, "me")
    assert there in list(homes["bob"].contexts)
    passenger.leave(token)


async def test_tasks_and_threads_inherit_it(inside: Context) -> None:
    async def ask() -> Any:
        return passenger.current()

    assert await asyncio.create_task(ask()) is inside
    assert await asyncio.to_thread(passenger.current) is inside


def test_work_may_be_part_of_what_was_current_elsewhere(inside: Context) -> None:
    found = PASSENGER.current()
    with passenger.outside():
        assert PASSENGER.current() is None
        PASSENGER.resume(found)
        assert passenger.current() is inside
        PASSENGER.resume(None)
        assert passenger.current() is None


def test_a_block_inside_of_one_may_be_outside(inside: Context) -> None:
    with passenger.outside():
        assert PASSENGER.leave("bob") == b"" and passenger.current() is None
    assert PASSENGER.leave("bob") and passenger.current() is inside


def test_nothing_leaves_in_a_context_that_has_ended(homes: dict[str, Home], inside: Context) -> None:
    homes["me"].contexts.end(inside.id)
    with pytest.raises(ContextClosed, match="has ended"):
        PASSENGER.leave("bob")
    with pytest.raises(ContextClosed, match="has ended"):
        send(Tensor(np.ones(3), requires_grad=True))


def test_calls_outside_of_contexts_carry_nothing(homes: dict[str, Home]) -> None:
    assert PASSENGER.leave("bob") == b""


@pytest.mark.parametrize("data", [b"", b"\x00" * 5, struct.pack("<QQQ", ME, 1, 12345) + b"me"])
def test_scopes_that_can_not_be_right(homes: dict[str, Home], data: bytes) -> None:
    with pytest.raises(WireError):
        PASSENGER.enter(data, BOB_INFO)
    assert all(len(home.contexts) == 0 for home in homes.values())


def bytes_of(
    context: Context, *, sender: int = ME, number: int = 1, receiver: int = BOB, index: int = 0
) -> bytes:
    return struct.pack("<QQQQQI", *context.id, sender, number, receiver, index)


@pytest.mark.parametrize(
    ("change", "luggage", "text"),
    [
        ({"sender": 99}, [np.ones(2)], "another member"),
        ({"receiver": 99}, [np.ones(2)], "not this process"),
        ({}, [], "can't be read"),
        ({}, [np.ones(2), np.ones(2)], "can't be read"),
        ({}, ["array"], "can't be read"),
        ({}, [np.arange(2)], "int64"),
    ],
)
def test_tensors_that_can_not_be_right(
    homes: dict[str, Home], change: dict[str, int], luggage: list[Any], text: str
) -> None:
    context = homes["bob"].contexts.open("bob")
    journey = Journey(ME_INFO, outgoing=False)
    journey.luggage = luggage
    with pytest.raises(WireError, match=text):
        PASSENGER.arrive(bytes_of(context, **change), journey)
    journey.luggage = [np.ones(2)]
    for data in (b"", bytes_of(context)[:-1], bytes_of(context) + b"x"):
        with pytest.raises(WireError, match="can't be read"):
            PASSENGER.arrive(data, journey)
    assert PASSENGER.arrive(bytes_of(context), journey).requires_grad
    with pytest.raises(WireError, match="came twice"):
        PASSENGER.arrive(bytes_of(context), journey)
