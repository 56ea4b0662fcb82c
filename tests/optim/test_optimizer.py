"""Local optimizers: groups, missing gradients, state that survives a round trip."""

import json
from typing import Any

import numpy as np
import pytest

from psframework import nn
from psframework.autograd.sparse import SparseRows
from psframework.autograd.tensor import Tensor
from psframework.errors import ArgumentError, AutogradError
from psframework.optim import (
    FTRL,
    LAMB,
    SGD,
    Adagrad,
    Adam,
    AdamRule,
    Optimizer,
    RMSprop,
    RowWiseAdagrad,
    SGDRule,
    schedule,
)
from psframework.testing.strict_device import strict_devices


def parameters(n: int = 2) -> list[Tensor]:
    rng = np.random.default_rng(0)
    return [Tensor(rng.standard_normal((3, i + 1)).astype(np.float32), requires_grad=True) for i in range(n)]


def give_gradients(params: list[Tensor], seed: int) -> None:
    rng = np.random.default_rng(seed)
    for parameter in params:
        parameter.grad = rng.standard_normal(parameter.shape).astype(np.float32)


def steps(optimizer: Optimizer, params: list[Tensor], seeds: range) -> None:
    for seed in seeds:
        give_gradients(params, seed)
        optimizer.step()


def test_a_step_is_the_rules_update() -> None:
    (parameter,) = parameters(1)
    expected, rule = parameter.data.copy(), AdamRule(lr=0.1)
    state = rule.init_state(expected)
    optimizer = Adam([parameter], lr=0.1)
    assert optimizer.rule == rule
    for step in (1, 2, 3):
        give_gradients([parameter], step)
        rule.update(expected, np.asarray(parameter.grad), state, step)
        optimizer.step()
    np.testing.assert_array_equal(parameter.data, expected)


def test_a_parameter_without_gradient_is_left_alone() -> None:
    first, second = parameters()
    before = second.data.copy()
    optimizer = Adam([first, second], lr=0.1)
    give_gradients([first], 0)
    optimizer.step()
    np.testing.assert_array_equal(second.data, before)
    give_gradients([first, second], 1)
    optimizer.step()
    state = optimizer.state_dict()["state"]
    assert (state[0]["step"], state[1]["step"]) == (2, 1)


def test_zero_grad() -> None:
    params = parameters()
    optimizer = SGD(params)
    give_gradients(params, 0)
    optimizer.zero_grad(set_to_none=False)
    assert all(not np.asarray(p.grad).any() for p in params)
    optimizer.zero_grad()
    assert [p.grad for p in params] == [None, None]


def test_a_step_is_seen_by_the_version_counter() -> None:
    params = parameters(1)
    before = params[0].version
    steps(SGD(params), params, range(1))
    assert params[0].version > before


def test_a_description_cannot_step() -> None:
    optimizer = Adam(lr=0.5)
    assert optimizer.rule == AdamRule(lr=0.5)
    with pytest.raises(ArgumentError, match=r"has no parameters.*optim\.Adam\(model\.parameters\(\)"):
        optimizer.step()


def test_groups_have_hyper_parameters_of_their_own() -> None:
    first, second = parameters()
    optimizer = SGD([{"params": [first]}, {"params": second, "lr": 0.0}], lr=0.1)
    before = second.data.copy()
    steps(optimizer, [first, second], range(1))
    np.testing.assert_array_equal(second.data, before)
    optimizer.param_groups[1]["lr"] = 1.0
    steps(optimizer, [first, second], range(1))
    np.testing.assert_array_equal(second.data, before - np.asarray(second.grad))


def test_a_schedule_counts_steps() -> None:
    parameter = Tensor(np.zeros(1, np.float32), requires_grad=True)
    optimizer = SGD([parameter], lr=schedule.Step(1.0, 1, gamma=0.5))
    for _ in range(3):
        parameter.grad = np.ones(1, np.float32)
        optimizer.step()
    np.testing.assert_array_equal(parameter.data, [-1.75])


@pytest.mark.parametrize("lr", [0.1, schedule.Cosine(0.1, 10)])
@pytest.mark.parametrize("kind", [SGD, Adam, Adagrad, RowWiseAdagrad, RMSprop, FTRL, LAMB])
def test_training_continues_bitwise_from_a_state_dict(kind: Any, lr: Any) -> None:
    params = parameters()
    optimizer = kind(params, lr=lr)
    steps(optimizer, params, range(3))
    saved = optimizer.state_dict()
    copies = [Tensor(p.data.copy(), requires_grad=True) for p in params]
    steps(optimizer, params, range(3, 6))

    resumed = kind(copies, lr=99.0)
    resumed.load_state_dict(saved)
    assert resumed.rule == optimizer.rule
    steps(resumed, copies, range(3, 6))
    for one, other in zip(params, copies):
        np.testing.assert_array_equal(one.data, other.data)


def test_hyper_parameters_of_a_state_dict_are_json() -> None:
    optimizer = Adam(parameters(), lr=schedule.Cosine(0.1, 10))
    groups = json.loads(json.dumps(optimizer.state_dict()["param_groups"]))
    fresh = Adam(parameters())
    fresh.load_state_dict({"state": {}, "param_groups": groups})
    assert fresh.rule == optimizer.rule


def test_a_state_dict_that_does_not_fit_changes_nothing() -> None:
    params = parameters()
    optimizer = Adam(params, lr=0.1)
    steps(optimizer, params, range(2))
    before = optimizer.state_dict()
    wrong_shape = optimizer.state_dict()
    wrong_shape["state"][1]["exp_avg"] = np.zeros(7, np.float32)
    wrong_slots = optimizer.state_dict()
    del wrong_slots["state"][0]["exp_avg"]
    no_step, one_more = optimizer.state_dict(), optimizer.state_dict()
    del no_step["state"][1]["step"]
    one_more["state"][2] = one_more["state"][1]
    for saved, words in [
        (Adam(parameters(3)).state_dict(), r"groups with \[3\] parameters, this optimizer has \[2\]"),
        (wrong_shape, r"parameter 1: exp_avg has shape \(7,\)"),
        (wrong_slots, "parameter 0: adam keeps step, exp_avg, exp_avg_sq, the state has step, exp_avg_sq"),
        (no_step, "parameter 1: adam keeps step,"),
        (one_more, "the state has a parameter 2, this optimizer only 2 parameters"),
        ({"state": {}}, "this is no state of an optimizer: it has no 'param_groups'"),
        (SGD(parameters(), momentum=0.9).state_dict(), "the state is of sgd, this optimizer is adam"),
    ]:
        with pytest.raises(ArgumentError, match=words):
            optimizer.load_state_dict(saved)
    np.testing.assert_equal(optimizer.state_dict(), before)


def test_what_does_not_fit_is_named_as_the_parameter_is() -> None:
    named = [("table.weight", parameters(1)[0])]
    optimizer = RowWiseAdagrad([{"params": named}])
    steps(optimizer, [named[0][1]], range(1))
    saved = optimizer.state_dict()
    assert saved["state"][0]["sum"].shape == (3, 1)
    optimizer.load_state_dict(saved)
    saved["state"][0]["sum"] = np.zeros((3, 2))
    with pytest.raises(
        ArgumentError, match=r"parameter 0 \(table.weight\): sum has shape \(3, 2\) in the state"
    ):
        optimizer.load_state_dict(saved)


@pytest.mark.parametrize("kind", [SGD, Adagrad, RowWiseAdagrad, FTRL])
def test_a_sparse_gradient_is_the_dense_one(kind: type[Optimizer]) -> None:
    one, other = (Tensor(np.ones((100, 2), np.float32), requires_grad=True) for _ in range(2))
    rows = SparseRows(np.array([7, 3, 7]), np.arange(6, dtype=np.float32).reshape(3, 2), (100, 2))
    mine, theirs = kind([one]), kind([other])
    for _ in range(2):
        one.grad, other.grad = rows, rows.to_dense()
        before = one.version
        mine.step()
        theirs.step()
        assert one.version > before
    used = [3, 7]  # FTRL's first dense step changes all rows
    np.testing.assert_array_equal(one.data[used], other.data[used])
    assert (one.data[:3] == 1).all()
    mine.load_state_dict(mine.state_dict())
    assert mine.state_dict()["state"][0]["step"] == 2


def test_a_sparse_gradient_and_zero_grad() -> None:
    one = Tensor(np.ones((4, 2), np.float32), requires_grad=True)
    one.grad = SparseRows(np.array([1]), np.ones((1, 2), np.float32), (4, 2))
    optimizer = SGD([one], lr=1.0)
    optimizer.zero_grad(set_to_none=False)
    optimizer.step()
    np.testing.assert_array_equal(one.data, 1)


def test_sparse_embedding_end_to_end() -> None:
    table = nn.Embedding(50, 4, sparse=True)
    before, optimizer = table.weight.data.copy(), Adagrad(table.parameters(), lr=0.1)
    table(np.array([3, 8, 3])).sum().backward()
    assert isinstance(table.weight.grad, SparseRows)
    optimizer.step()
    changed = np.nonzero((table.weight.data != before).any(axis=1))[0]
    assert changed.tolist() == [3, 8]
    np.testing.assert_allclose(before[[3, 8]] - table.weight.data[[3, 8]], 0.1, rtol=1e-5)


def test_a_model_that_was_moved_is_explained() -> None:
    with strict_devices("gpu-7") as (device,):
        (parameter,) = parameters(1)
        optimizer = Adam([("w", parameter)])
        steps(optimizer, [parameter], range(1))
        saved = optimizer.state_dict()
        parameter.data, parameter.grad = device.to_device(parameter.data), None
        parameter.grad = device.to_device(np.ones((3, 1), np.float32))
        with pytest.raises(
            ArgumentError, match=r"parameter 0 \(w\) can't .* on gpu-7.* exp_avg is float32 on cpu"
        ):
            optimizer.step()
        assert optimizer.state_dict()["state"][0]["step"] == 1
        optimizer.load_state_dict(saved)
        optimizer.step()
        assert type(parameter.data) is device.ndarray


def test_bad_parameters_are_refused() -> None:
    (parameter,) = parameters(1)
    for params, words in [
        ([], "empty list"),
        (nn.Linear(2, 2), r"not a Linear: its \.parameters\(\)"),
        (nn.Sequential(nn.ReLU(), nn.Linear(2, 2)), r"not a Sequential"),
        (parameter, "put the Tensor into a list"),
        ([parameter, parameter], "listed twice"),
        ([np.zeros(3)], "takes Tensors, not ndarray"),
        ([{"params": [parameter], "speed": 1}], "no hyper-parameter speed"),
        ([{"params": [parameter], "lr": -1}], "lr must be at least 0"),
        ([{"lr": 1}], 'a group needs "params", this one has lr'),
    ]:
        with pytest.raises(ArgumentError, match=words):
            SGD(params)


def test_repr_shows_the_rule_of_each_group() -> None:
    first, second = parameters(1), parameters(1)
    assert repr(SGD([{"params": first, "lr": 1}, {"params": second}], lr=0.1)).count("SGDRule(lr=") == 2
    assert repr(SGD(lr=0.1)).startswith("SGD(SGDRule(lr=0.1, ")


def test_named_parameters_and_generators() -> None:
    params = parameters()
    optimizer = SGD((f"p{i}", p) for i, p in enumerate(params))
    assert optimizer.param_groups[0]["params"] == params
    assert optimizer.rule == SGDRule()


@pytest.mark.parametrize(
    ("kind", "change"),
    [(SGD, {"momentum": 0.9}), (Adam, {"amsgrad": True}), (RMSprop, {"centered": True, "momentum": 0.5})],
)
def test_hyper_parameters_that_need_slots_may_be_assigned_between_steps(kind: Any, change: Any) -> None:
    params = parameters()
    optimizer = kind(params, lr=0.1)
    before = kind(params, lr=0.1, **change).rule
    steps(optimizer, params, range(2))
    optimizer.param_groups[0].update(change)
    saved = optimizer.state_dict()
    resumed = kind([Tensor(p.data.copy(), requires_grad=True) for p in params])
    resumed.load_state_dict(saved)
    assert resumed.rule == before
    steps(optimizer, params, range(2, 4))
    steps(resumed, resumed.param_groups[0]["params"], range(2, 4))
    for one, other in zip(params, resumed.param_groups[0]["params"]):
        np.testing.assert_array_equal(one.data, other.data)
    optimizer.param_groups[0].update(dict.fromkeys(change, 0.0))
    steps(optimizer, params, range(4, 5))
    assert optimizer.state_dict()["state"][0].keys() == {"step", *kind(params).rule.slots()}


@pytest.mark.parametrize(
    ("old", "new"), [("float32", "float16"), ("float16", "float32"), ("float32", "float64")]
)
def test_a_state_fits_parameters_of_another_dtype(old: str, new: str) -> None:
    one = Tensor(np.linspace(0.1, 1, 3).astype(old), requires_grad=True)
    optimizer = Adam([one], lr=1e-4)
    one.grad = np.ones(3, old)
    optimizer.step()
    other = Tensor(one.data.astype(new), requires_grad=True)
    resumed = Adam([other])
    resumed.load_state_dict(optimizer.state_dict())
    state = resumed.state_dict()["state"][0]
    assert state["exp_avg"].dtype == ("float64" if new == "float64" else "float32")
    np.testing.assert_allclose(state["exp_avg"], 0.1, rtol=1e-3)
    for _ in range(20):  # of 1e-4 each: in float16 most of them would be lost
        one.grad, other.grad = np.ones(3, old), np.ones(3, new)
        optimizer.step()
        resumed.step()
    np.testing.assert_allclose(other.data.astype(np.float64), one.data.astype(np.float64), atol=1e-3)
    assert (one.data.astype(np.float64) < np.linspace(0.1, 1, 3) - 0.0015).all()


# Gradients from elsewhere, while graphs over the parameters live


@pytest.mark.parametrize("kind", [SGD, Adam, Adagrad, LAMB, RowWiseAdagrad])
@pytest.mark.parametrize("shape", [(3, 4), (70_000,), (300, 301)])  # the latter are cut into blocks
def test_apply_is_a_step_that_leaves_the_old_array_as_it_is(kind: Any, shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    one, other = (Tensor(rng.standard_normal(shape), requires_grad=True) for _ in range(2))
    one.data = other.data.copy()
    stepping, applying = kind([one], lr=0.1), kind([other], lr=0.1)
    for _ in range(3):
        one.grad = rng.standard_normal(shape)
        before, values = other.data, other.data.copy()
        stepping.step()
        applying.apply({other: one.grad})
        assert other.data is not before
        np.testing.assert_array_equal(before, values)
        np.testing.assert_array_equal(other.data, one.data)
    assert other.grad is None


def test_a_graph_from_before_apply_has_the_gradients_of_the_old_values() -> None:
    weight = Tensor(np.array([[2.0, 3.0]]), requires_grad=True)
    x = Tensor(np.array([1.0, 4.0]), requires_grad=True)
    optimizer = SGD([weight], lr=1.0)
    loss = ((weight * x) * weight).sum()  # saves the weight's array twice
    optimizer.apply({weight: np.array([[1.0, 1.0]])})
    later = (weight * x).sum()
    loss.backward()
    np.testing.assert_array_equal(weight.grad, [[2 * 2.0 * 1.0, 2 * 3.0 * 4.0]])
    np.testing.assert_array_equal(x.grad, [4.0, 9.0])
    x.grad = None
    later.backward()
    np.testing.assert_array_equal(x.grad, [1.0, 2.0])
    # A local step is still noticed.
    loss = (weight * x).sum()
    optimizer.step()
    with pytest.raises(AutogradError, match="changed in place"):
        loss.backward()


def test_apply_takes_a_rule_and_only_the_parameters_it_has_gradients_of() -> None:
    params = parameters(2)
    optimizer = SGD(params, lr=0.5)
    before = [parameter.data for parameter in params]
    optimizer.apply({params[1]: np.ones_like(params[1].data)}, SGDRule(lr=2.0))
    assert params[0].data is before[0]
    np.testing.assert_array_equal(params[1].data, before[1] - 2)
    assert set(optimizer.state_dict()["state"]) == {1}


def test_apply_changes_a_part_of_a_larger_array_in_place() -> None:
    arena = np.zeros(4)
    part = Tensor(arena[1:3], requires_grad=True)
    loss = (part * part).sum()
    SGD([part], lr=1.0).apply({part: np.ones(2)})
    np.testing.assert_array_equal(arena, [0, -1, -1, 0])
    with pytest.raises(AutogradError, match="changed in place"):
        loss.backward()


def test_apply_copies_a_table_only_if_somebody_else_has_its_array() -> None:
    table = Tensor(np.zeros((4, 2)), requires_grad=True)
    rows = SparseRows(np.array([1]), np.ones((1, 2)), (4, 2))
    optimizer = SGD([table], lr=1.0)
    number = id(table.data)
    optimizer.apply({table: rows})
    assert id(table.data) == number and table.data[1].all() and not table.data[0].any()
    graph = (table * table).sum()
    optimizer.apply({table: rows})
    assert id(table.data) != number
    graph.backward()
    np.testing.assert_array_equal(table.grad[1], [-2.0, -2.0])
