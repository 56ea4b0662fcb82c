"""One process's part of one backward, without a network."""

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from psframework.autograd.engine import backward, start
from psframework.autograd.tensor import Tensor
from psframework.dist_autograd.context import Context, Contexts
from psframework.dist_autograd.discovery import Discovery
from psframework.dist_autograd.engine import Gradients, LocalPart
from psframework.dist_autograd.ids import TensorsId
from psframework.dist_autograd.pairs import Received, Sent
from psframework.errors import AutogradError, ContextClosed, WireError


@dataclass
class Place:
    """One process of a world in one process: a context, and its part."""

    number: int
    context: Context = field(init=False)
    discovery: Discovery = field(init=False)
    part: LocalPart = field(init=False)
    left: list[tuple[Received, Gradients]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.context = Contexts(self.number).open(str(self.number))

    def sends(self, to: "Place", *tensors: Tensor) -> list[Tensor]:
        """A message to another place; returns what arrives there."""
        id = TensorsId(self.number, len(self.context.sent) + 1)
        sent = self.context.sent[id] = Sent(id, str(to.number), "")
        for tensor in tensors:
            sent.add(tensor)
        message = to.context.arriving(id, (str(self.number), self.number), "")
        return [message.take(index, tensor._data.copy()) for index, tensor in enumerate(tensors)]

    def run(self) -> None:
        self.part.run(lambda message, gradients: self.left.append((message, gradients)))


def distributed(places: list[Place], root: Tensor, order: Random, retain: bool = False) -> None:
    """A whole backward from a root at the first place; messages come in any order."""
    gradients, heap = start(root, None)
    for place in places:
        place.discovery = Discovery(place.context)
    asked = [places[0].discovery.from_roots(gradients)]
    while asked:
        for message, tensors in asked.pop(order.randrange(len(asked))).items():
            more = places[message.peer[1]].discovery.from_message(message.id, tensors)
            if more:
                asked.append(more)
    for place in places:
        found = place.discovery
        place.part = LocalPart(place.context, found.reached, found.asked, retain=retain)
    places[0].part.start(gradients, heap)
    stirred = {0}  # places that something came to since they ran
    while stirred or any(place.left for place in places):
        senders = [place for place in places if place.left]
        if stirred and (not senders or order.random() < 0.7):
            number = order.choice(sorted(stirred))
            stirred.remove(number)
            places[number].run()
            continue
        sender = order.choice(senders)
        message, due = sender.left.pop(order.randrange(len(sender.left)))
        receiver = places[message.peer[1]]
        receiver.part.give(receiver.context.sent[message.id], due)
        stirred.add(receiver.number)
    for place in places:
        place.run()  # also those that nothing came to
        assert place.part.done and not place.part.waits
        place.part.close()


OPERATIONS: list[Callable[[Tensor, Tensor], Tensor]] = [
    lambda a, b: a * b,
    lambda a, b: a + b * 0.5,
    lambda a, b: a.tanh() - b,
    lambda a, b: a.reshape(2, 2) @ b.reshape(2, 2),
]


@given(seed=st.integers(0, 1 << 30))
def test_the_gradients_are_those_of_one_process_whatever_comes_first(seed: int) -> None:
    """A graph that jumps between places at random; where a value stays in its place, none of it is copied."""
    order = Random(seed)
    places = [Place(number) for number in range(order.randint(1, 4))]
    weights = [Tensor(np.random.default_rng(seed + n).normal(size=4), requires_grad=True) for n in range(3)]
    home = [order.choice(places) for _ in weights]
    values: list[tuple[Place, Tensor, Tensor]] = list(
        zip(home, weights, weights)
    )  # there, and in one process
    for _ in range(order.randint(1, 14)):
        (one, a, own_a), (two, b, own_b) = order.choice(values), order.choice(values)
        where, operation = order.choice(places), order.choice(OPERATIONS)
        if one is two is not where and order.random() < 0.5:
            a, b = one.sends(where, a, b)
        else:
            a = a if one is where else one.sends(where, a)[0]
            b = b if two is where else two.sends(where, b)[0]
        values.append((where, operation(a, b).reshape(4), operation(own_a, own_b).reshape(4)))
    last, own_last = values[-1][1], values[-1][2]
    if values[-1][0] is not places[0]:
        (last,) = values[-1][0].sends(places[0], last)
    expected = backward(own_last.sum(), retain_graph=True)
    distributed(places, last.sum(), order)
    found = {leaf: gradient for place in places for leaf, gradient in place.context.gradients.items()}
    assert set(found) == set(expected)
    for leaf, gradient in expected.items():
        np.testing.assert_allclose(found[leaf], gradient, rtol=1e-12, atol=1e-12)


def test_nothing_older_than_a_message_that_waits_runs() -> None:
    here, there = Place(0), Place(1)
    ran: list[str] = []
    x = Tensor(np.ones(2), requires_grad=True)
    old = x * 1.0
    old.register_hook(lambda gradient: ran.append("old"))
    (arrived,) = here.sends(there, old)
    (back,) = there.sends(here, arrived * 2.0)
    new = old * 3.0
    new.register_hook(lambda gradient: ran.append("new"))
    root = (new + back).sum()
    gradients, heap = start(root, None)
    found = Discovery(here.context)
    (message,) = found.from_roots(gradients)
    found.from_message(next(iter(here.context.sent)), [0])
    part = here.part = LocalPart(here.context, found.reached, found.asked, retain=False)
    part.start(gradients, heap)
    here.run()
    assert ran == ["new"] and not part.done and part.waits == [*here.context.sent.values()]
    assert [(each, gradient.tolist()) for each, (gradient,) in here.left] == [(message, [1.0, 1.0])]
    part.give(part.waits[0], (np.full(2, 2.0),))
    here.run()
    assert ran == ["new", "old"] and part.done
    np.testing.assert_array_equal(here.context.gradients[x], [5.0, 5.0])


def test_gradients_come_once_and_only_for_what_takes_part() -> None:
    here, there = Place(0), Place(1)
    x = Tensor(np.ones(2), requires_grad=True)
    here.sends(there, x)
    here.sends(there, x)
    first, second = here.context.sent.values()
    part = LocalPart(here.context, [first], {}, retain=False)
    with pytest.raises(WireError, match="not part of this backward"):
        part.give(second, (np.ones(2),))
    with pytest.raises(WireError, match="not "):
        part.give(first, (np.ones(3),))
    part.give(first, (np.ones(2),))
    with pytest.raises(WireError, match="came twice"):
        part.give(first, (np.ones(2),))


def test_a_message_that_no_gradient_reaches_goes_back_with_nothing() -> None:
    """A rule may answer None: whoever waits for the message must not wait for ever."""
    here, there = Place(0), Place(1)
    (came,) = there.sends(here, Tensor(np.ones(2), requires_grad=True))
    x = Tensor(np.ones(2), requires_grad=True)
    root = (came * x).sum()
    root._node.edges[0].backward = lambda gradient: (None, gradient)
    gradients, heap = start(root, None)
    asked = Discovery(here.context).from_roots(gradients)
    here.part = LocalPart(here.context, [], asked, retain=False)
    here.part.start(gradients, heap)
    here.run()
    (message,) = asked
    assert here.left == [(message, (None,))]
    assert here.part.unused == [message] and here.part.done


def test_a_second_backward_of_a_kept_graph_adds_the_same_again() -> None:
    here, there = Place(0), Place(1)
    x, w = Tensor(np.ones(2), requires_grad=True), Tensor(np.full(2, 3.0), requires_grad=True)
    (arrived,) = here.sends(there, x)
    (back,) = there.sends(here, arrived * w)
    root = back.sum()
    for times in (1.0, 2.0):
        distributed([here, there], root, Random(0), retain=True)
        np.testing.assert_array_equal(here.context.gradients[x], [3.0 * times] * 2)
        np.testing.assert_array_equal(there.context.gradients[w], [1.0 * times] * 2)
    distributed([here, there], root, Random(0))
    with pytest.raises(AutogradError, match="freed"):
        distributed([here, there], root, Random(0))
    np.testing.assert_array_equal(here.context.gradients[x], [9.0] * 2)


def test_what_came_is_for_one_part_while_it_runs_and_no_longer() -> None:
    here, there = Place(0), Place(1)
    (came,) = there.sends(here, Tensor(np.ones(2), requires_grad=True))
    root = came.sum()
    distributed([here, there], root, Random(0), retain=True)
    with pytest.raises(AutogradError, match=r"ctx\.backward"):
        root.backward()


@pytest.mark.parametrize("at_a_message", [False, True])
def test_a_part_that_is_closed_while_it_runs_stops(at_a_message: bool) -> None:
    """By the loop's thread, while this one is in a rule."""
    here, there = Place(0), Place(1)
    x = Tensor(np.ones(2), requires_grad=True)
    start_of_it = there.sends(here, x)[0] if at_a_message else x
    middle = start_of_it * 2.0
    middle.register_hook(lambda gradient: here.part.close())
    gradients, heap = start(middle.sum(), None)
    asked = Discovery(here.context).from_roots(gradients)
    here.part = LocalPart(here.context, [], asked, retain=False)
    here.part.start(gradients, heap)
    for _ in range(2):
        with pytest.raises(ContextClosed, match="was given up"):
            here.run()
    assert not here.left and not here.context.gradients and not here.part.done
    assert all(message.runner is None for message in asked)
