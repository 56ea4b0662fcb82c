"""One process's part: gradients of the context of the call, locks, arrays that are replaced."""

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from psframework import nn
from psframework.autograd.sparse import SparseRows
from psframework.autograd.tensor import Tensor
from psframework.dist_autograd import passenger
from psframework.dist_autograd.context import Context
from psframework.dist_autograd.ids import ContextId
from psframework.dist_optim.owner import OwnersOptimizer, named_parameters, owners_optimizer
from psframework.errors import ArgumentError, ContextClosed
from psframework.optim import SGDRule, clip_grad_norm_
from psframework.optim.rule import UpdateRule
from psframework.rref.handle import RRef

RULE = SGDRule(lr=1.0)


def parameter(values: Any) -> nn.Parameter:
    return nn.Parameter(np.array(values, float))


def optimizer(items: Sequence[Any], rule: UpdateRule = RULE) -> OwnersOptimizer:
    return OwnersOptimizer(rule.spec(), list(enumerate(items)))


@contextmanager
def context(gradients: dict[Any, Any], counter: int = 1) -> Iterator[Context]:
    made = Context(ContextId(1, counter), "me")
    made.gradients.update(gradients)
    token = passenger.enter(cast(Any, SimpleNamespace()), made)
    try:
        yield made
    finally:
        passenger.leave(token)


def test_keys_are_places_and_names_and_each_parameter_has_one() -> None:
    module, alone = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1)), parameter([1.0])
    module[0].bias.requires_grad = False
    made = optimizer([alone, module, module[1], alone])
    assert made.keys() == ["0", "1.0.weight", "1.1.weight", "1.1.bias"]


def test_only_the_contexts_gradients_count_and_only_of_these_parameters() -> None:
    one, other, foreign = parameter([1.0, 2.0]), parameter([[3.0]]), parameter([4.0])
    one.grad = np.ones(2)
    made = optimizer([one, other])
    gradient = np.array([[2.0]])
    with context({other: gradient, foreign: np.ones(1)}):
        assert made.powers() == [4.0]
        made.step(0.5)
    assert (one.data.tolist(), other.data.tolist(), foreign.data.tolist()) == ([1, 2], [[2]], [4])
    assert gradient == 2 and (one.grad == 1).all()
    with context({}):
        made.step()
        assert made.powers() == []


def test_without_a_living_context_nothing_is_stepped() -> None:
    one = parameter([1.0])
    made = optimizer([one])
    with pytest.raises(ContextClosed, match="no context here"):
        made.step()
    with context({one: np.ones(1)}) as ended:
        ended.ended = "has ended"
        with pytest.raises(ContextClosed):
            made.step()
        with pytest.raises(ContextClosed):
            made.powers()
    assert one.data == 1


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_scaled_gradients_are_those_of_clip_grad_norm(dtype: str) -> None:
    rng = np.random.default_rng(0)
    one, twin = (nn.Parameter(np.ones((3, 2), dtype)) for _ in range(2))
    gradient = rng.standard_normal((3, 2)).astype(dtype)
    twin.grad = gradient.copy()
    norm = clip_grad_norm_([twin], 0.5)
    made = optimizer([one])
    with context({one: gradient}):
        assert made.powers() == [norm**2] or np.isclose(made.powers()[0], norm**2)
        made.step(0.5 / (norm + 1e-6))
    expected = optimizer([twin])
    with context({twin: twin.grad}):
        expected.step()
    np.testing.assert_array_equal(one.data, twin.data)


def test_sparse_gradients_are_scaled_in_a_copy() -> None:
    table = parameter(np.zeros((3, 1)))
    gradient = SparseRows(np.array([2, 2]), np.ones((2, 1)), (3, 1))
    made = optimizer([table])
    with context({table: gradient}):
        assert made.powers() == [4.0]
        made.step(0.5)
    np.testing.assert_array_equal(table.data, [[0], [0], [-1]])
    np.testing.assert_array_equal(gradient.values, 1)


def test_another_rule_counts_for_one_step() -> None:
    one = parameter([0.0])
    made = optimizer([one])
    with context({one: np.ones(1)}):
        made.step(1.0, SGDRule(lr=10.0).spec())
        made.step()
    assert one.data == -11


def test_an_array_that_is_all_of_another_is_replaced_and_a_part_stays() -> None:
    whole, arena = nn.Parameter(np.arange(6.0).reshape(2, 3)), np.arange(4.0)
    part = nn.Parameter(arena[1:3])
    made = optimizer([whole, part])
    graph = (whole * whole).sum()
    with context({whole: np.ones((2, 3)), part: np.ones(2)}):
        made.step()
    assert whole.data.base is None
    np.testing.assert_array_equal(arena, [0, 0, 1, 3])
    graph.backward()
    np.testing.assert_array_equal(whole.grad, 2 * np.arange(6.0).reshape(2, 3))


def test_a_forward_in_another_thread_sees_one_values_array_or_the_next() -> None:
    weight = nn.Parameter(np.zeros(300_000))
    made = optimizer([weight])
    stop = threading.Event()
    torn: list[tuple[float, float]] = []

    def forward() -> None:
        while not stop.is_set():
            out = weight * 1.0
            low, high = float(out.data.min()), float(out.data.max())
            if low != high:
                torn.append((low, high))
            out.sum().backward()  # raises if the array was changed meanwhile

    with ThreadPoolExecutor() as pool:
        reading = pool.submit(forward)
        with context({weight: np.ones(300_000)}):
            for _ in range(100):
                made.step()
        stop.set()
        reading.result(10)
    assert not torn
    assert (weight.data == -100).all()


def test_steps_of_many_threads_lose_nothing() -> None:
    size = 200_000  # NumPy lets other threads run while it computes with so many
    shared, own = parameter(np.zeros(size)), [parameter([0.0]) for _ in range(4)]
    makers = [optimizer([shared, each]) for each in own] + [optimizer([shared])]

    def run(number: int) -> None:
        gradients = {shared: np.ones(size)} | ({own[number]: np.ones(1)} if number < 4 else {})
        for _ in range(20):
            with context(gradients, number):
                makers[number].step()

    with ThreadPoolExecutor() as pool:
        for done in [pool.submit(run, number) for number in range(5)]:
            done.result(20)
    assert (shared.data == -100).all()
    assert [each.data[0] for each in own] == [-20] * 4


def test_a_state_goes_by_keys() -> None:
    one, other = parameter([0.0]), parameter([[0.0]])
    rule = SGDRule(lr=1.0, momentum=0.5)
    made, resumed = optimizer([one, other], rule), optimizer([parameter([0.0]), parameter([[0.0]])])
    with context({other: np.ones((1, 1))}):
        made.step()
    state = made.state_dict()
    assert state.keys() == {"1"} and state["1"]["step"] == 1
    resumed.load_state_dict(state, rule.spec())
    np.testing.assert_equal(resumed.state_dict(), state)
    with pytest.raises(ArgumentError, match="momentum"):
        resumed.load_state_dict({"1": {"step": 3, "momentum": np.zeros(2)}}, rule.spec())
    np.testing.assert_equal(resumed.state_dict(), state)


async def test_references_stand_for_their_values() -> None:
    part = nn.Linear(2, 1, bias=False)

    class Reference(RRef):
        def __init__(self) -> None:
            pass

        async def to_here(self, timeout: float | None = None) -> nn.Module:
            return part

        def __del__(self) -> None:
            pass

    made = await owners_optimizer(RULE.spec(), [(3, Reference()), (5, parameter([0.0])), (6, part.weight)])
    assert made.keys() == ["3.weight", "5"]


@pytest.mark.parametrize(
    ("item", "message"),
    [
        ({}, "item 4 of the list has no parameters: it is a dict"),
        (nn.ReLU(), "item 4 of the list, a ReLU, has no parameters that require grad"),
        (Tensor(np.zeros(2)), "item 4 of the list, a Tensor, does not require grad"),
        (Tensor(np.zeros(2), requires_grad=True) * 2, "item 4 .* was computed from others"),
    ],
)
def test_items_without_parameters_are_named_by_place(item: object, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        list(named_parameters(4, item))
