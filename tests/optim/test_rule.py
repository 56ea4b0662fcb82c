"""What every update rule promises: bits that don't depend on cutting, threads or strides."""

import json
from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from psframework.errors import ArgumentError
from psframework.optim import (
    AdagradRule,
    AdamRule,
    AdamWRule,
    RMSpropRule,
    SGDRule,
    UpdateRule,
    apply_blocks,
    rule_from_spec,
    schedule,
    set_update_threads,
    update_threads,
)
from psframework.optim.blocks import BLOCK

RULES: list[UpdateRule] = [
    SGDRule(lr=0.1),
    SGDRule(lr=0.1, momentum=0.9, dampening=0.2, weight_decay=0.01),
    SGDRule(lr=0.1, momentum=0.9, weight_decay=0.01, nesterov=True),
    AdamRule(lr=0.01, weight_decay=0.01),
    AdamRule(lr=0.01, amsgrad=True),
    AdamWRule(lr=0.01),
    AdagradRule(lr=0.1, lr_decay=0.1, weight_decay=0.01, initial_accumulator_value=0.5),
    RMSpropRule(lr=0.01, weight_decay=0.01),
    RMSpropRule(lr=0.01, momentum=0.9, centered=True),
]
every_rule = pytest.mark.parametrize("rule", RULES, ids=lambda r: json.dumps(r.spec())[9:60])


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    before = update_threads()
    yield
    set_update_threads(before)


def arrays(
    shape: tuple[int, ...], seed: int = 0, dtype: Any = np.float32
) -> tuple[np.ndarray, list[np.ndarray]]:
    rng = np.random.default_rng(seed)
    parameter = rng.standard_normal(shape).astype(dtype)
    return parameter, [rng.standard_normal(shape).astype(dtype) for _ in range(3)]


def run(rule: UpdateRule, parameter: np.ndarray, gradients: list[np.ndarray]) -> dict[str, np.ndarray]:
    """Three steps in place; returns the state."""
    state = rule.init_state(parameter)
    for step, gradient in enumerate(gradients, 1):
        rule.update(parameter, gradient, state, step)
    return state


@every_rule
@settings(max_examples=8, deadline=None)
@given(borders=st.lists(st.integers(0, 300), max_size=4), seed=st.integers(0, 99))
def test_bits_do_not_depend_on_how_a_parameter_is_cut(
    rule: UpdateRule, borders: list[int], seed: int
) -> None:
    whole, gradients = arrays((300,), seed)
    pieces = whole.copy()
    state = run(rule, whole, gradients)
    for start, end in zip([0, *sorted(borders)], [*sorted(borders), 300]):
        piece_state = run(rule, pieces[start:end], [g[start:end] for g in gradients])
        for name, slot in piece_state.items():
            np.testing.assert_array_equal(slot, state[name][start:end])
    np.testing.assert_array_equal(pieces, whole)


@every_rule
def test_bits_do_not_depend_on_blocks_and_threads(rule: UpdateRule) -> None:
    n = 13 * BLOCK + 17
    start, gradients = arrays((n,))
    results = []
    for threads in (1, 3):
        set_update_threads(threads)
        parameter = start.copy()
        state = run(rule, parameter, gradients)
        results.append((parameter, state))
    small = start[BLOCK - 9 : BLOCK + 9].copy()  # across a border, as a piece of its own
    run(rule, small, [g[BLOCK - 9 : BLOCK + 9] for g in gradients])
    np.testing.assert_array_equal(results[0][0], results[1][0])
    np.testing.assert_array_equal(small, results[0][0][BLOCK - 9 : BLOCK + 9])
    for name, slot in results[0][1].items():
        np.testing.assert_array_equal(slot, results[1][1][name])


@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (7,), (5, 11), (3, BLOCK + 5), (2 * BLOCK + 3, 3)])
def test_any_shape_and_any_strides_give_the_same_bits(shape: tuple[int, ...]) -> None:
    rule = AdamRule(lr=0.01, weight_decay=0.1)
    plain, gradients = arrays(shape)
    strided = np.asfortranarray(plain)
    run(rule, plain, gradients)
    run(rule, strided, [np.asfortranarray(g) for g in gradients])
    np.testing.assert_array_equal(strided, plain)


@every_rule
def test_several_gradients_are_averaged_in_order(rule: UpdateRule) -> None:
    parameter, gradients = arrays((1000,))
    expected = parameter.copy()
    state, expected_state = rule.init_state(parameter), rule.init_state(parameter)
    kept = [g.copy() for g in gradients]
    rule.update(expected, (gradients[0] + gradients[1] + gradients[2]) / 3, expected_state, 1)
    apply_blocks(rule, parameter, gradients, state, 1)
    np.testing.assert_array_equal(parameter, expected)
    np.testing.assert_array_equal(gradients, kept)


def test_contributors_without_gradients_count() -> None:
    parameter = np.zeros(3, np.float32)
    apply_blocks(SGDRule(lr=1.0), parameter, [np.full(3, 6, np.float32)], {}, 1, contributors=3)
    np.testing.assert_array_equal(parameter, np.full(3, -2, np.float32))


@pytest.mark.parametrize("n", [100, 3 * BLOCK + 1])
def test_out_gets_the_new_values(n: int) -> None:
    rule = AdamRule()
    parameter, gradients = arrays((n,))
    out = np.full(n, np.nan, np.float32)
    apply_blocks(rule, parameter, gradients[0], rule.init_state(parameter), 1, out)
    np.testing.assert_array_equal(out, parameter)


def test_integer_gradients_are_exact() -> None:
    parameter = np.zeros(4, np.float32)
    for _ in range(100):
        for step in (1, 2):
            SGDRule(lr=1.0).update(parameter, np.ones(4, np.float32), {}, step)
    np.testing.assert_array_equal(parameter, np.full(4, -200, np.float32))


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_half_precision_keeps_small_updates(dtype: Any) -> None:
    """1000 updates of 1e-4 to 1.0: each is lost in half precision, all together are 0.1."""
    rule = SGDRule(lr=1e-4)
    parameter = np.ones(4, dtype)
    state = rule.init_state(parameter)
    assert {slot.dtype for slot in state.values()} == {np.dtype(np.float32)}
    for step in range(1, 1001):
        rule.update(parameter, np.ones(4, dtype), state, step)
    assert parameter.dtype == np.dtype(dtype)
    np.testing.assert_allclose(parameter.astype(np.float32), 0.9, atol=0.004)


def test_half_precision_parameter_written_from_outside_wins() -> None:
    rule = SGDRule(lr=1e-4)
    parameter = np.ones(2, np.float16)
    state = run(rule, parameter, [np.ones(2, np.float16)] * 3)
    parameter[1] = 5
    rule.update(parameter, np.zeros(2, np.float16), state, 4)
    np.testing.assert_allclose(state["master"], [1 - 3e-4, 5], rtol=1e-6)


def test_half_precision_gradient_of_a_float32_parameter() -> None:
    parameter = np.zeros(2, np.float32)
    SGDRule(lr=0.5).update(parameter, np.array([1, 2], np.float16), {}, 1)
    np.testing.assert_array_equal(parameter, np.array([-0.5, -1], np.float32))


@every_rule
def test_spec_round_trip(rule: UpdateRule) -> None:
    assert rule_from_spec(json.loads(json.dumps(rule.spec()))) == rule


def test_spec_carries_the_schedule() -> None:
    rule = AdamRule(lr=schedule.LinearWarmup(schedule.Cosine(0.1, 100), 10))
    assert rule_from_spec(json.loads(json.dumps(rule.spec()))) == rule


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"name": "nope"}, "unknown update rule 'nope'; known: adagrad"),
        ({}, "unknown update rule None"),
        ({"name": "sgd", "beta": 1}, "sgd: unknown beta; known: lr, momentum"),
        ({"name": "sgd", "lr": "fast"}, "lr must be a finite number"),
        ({"name": "sgd", "lr": float("nan")}, "lr must be a finite number"),
        ({"name": "sgd", "lr": -1}, "sgd: lr must be at least 0"),
        ({"name": "sgd", "momentum": True}, "sgd.momentum must be like 0.0"),
        ({"name": "sgd", "nesterov": 1}, "sgd.nesterov must be like False"),
        ({"name": "sgd", "nesterov": True}, "nesterov must be False without momentum"),
        ({"name": "adam", "betas": [0.9]}, "adam.betas must be like"),
        ({"name": "adam", "betas": [0.9, 1.0]}, "adam: betas must be two in"),
        ({"name": "adagrad", "eps": -1}, "adagrad: eps must be at least 0"),
        ({"name": "rmsprop", "alpha": 2}, "rmsprop: alpha must be in"),
    ],
)
def test_bad_specs_are_refused(spec: dict[str, Any], words: str) -> None:
    with pytest.raises(ArgumentError, match=words):
        rule_from_spec(spec)


def test_bad_arrays_are_refused() -> None:
    rule, parameter = SGDRule(), np.zeros(3, np.float32)
    with pytest.raises(ArgumentError, match=r"shape \(3,\); one has \(1,\)"):
        rule.update(parameter, np.zeros(1, np.float32), {}, 1)
    with pytest.raises(ArgumentError, match="no gradient"):
        apply_blocks(rule, parameter, [], {}, 1)
    with pytest.raises(ArgumentError, match="not int64"):
        rule.update(np.zeros(3, np.int64), np.zeros(3, np.int64), {}, 1)


@pytest.mark.oracle
@every_rule
def test_equals_torch(rule: UpdateRule) -> None:
    torch = pytest.importorskip("torch")
    spec = rule.spec()
    kind = {"sgd": "SGD", "adam": "Adam", "adamw": "AdamW", "adagrad": "Adagrad", "rmsprop": "RMSprop"}
    parameter, gradients = arrays((50,), dtype=np.float64)
    theirs = torch.nn.Parameter(torch.tensor(parameter))
    optimizer = getattr(torch.optim, kind[rule.name])(
        [theirs], **{k: v for k, v in spec.items() if k != "name"}
    )
    for gradient in gradients:
        theirs.grad = torch.tensor(gradient)
        optimizer.step()
    run(rule, parameter, gradients)
    np.testing.assert_allclose(parameter, theirs.detach().numpy(), rtol=1e-12)
