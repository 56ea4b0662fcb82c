"""What every update rule promises: bits that don't depend on cutting, threads or strides."""

import dataclasses
import itertools
import json
from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from psframework.autograd.sparse import SparseRows
from psframework.errors import ArgumentError
from psframework.optim import (
    AdagradRule,
    AdamRule,
    AdamWRule,
    FTRLRule,
    LAMBRule,
    RMSpropRule,
    RowWiseAdagradRule,
    SGDRule,
    UpdateRule,
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
    FTRLRule(lr=0.1, l1=0.1, l2=0.1, l2_shrinkage=0.1, beta=1.0),
    FTRLRule(lr=schedule.Cosine(0.1, 4), lr_power=-0.7, l1=0.01, initial_accumulator_value=0.0),
    RowWiseAdagradRule(lr=0.1, weight_decay=0.01),
    LAMBRule(lr=0.1, weight_decay=0.01),
]


def label(rule: UpdateRule) -> str:
    """The name and the first options that are not the default."""
    default = type(rule)().spec()
    return "-".join([rule.name, *(key for key, value in rule.spec().items() if value != default[key])])


every_rule = pytest.mark.parametrize("rule", RULES, ids=label)
elementwise = pytest.mark.parametrize("rule", [rule for rule in RULES if rule.grain == "element"], ids=label)


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


@elementwise
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


@elementwise
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
        ({"name": "sgd", "beta": 1}, "sgd: unknown beta; known: lr, maximize, momentum"),
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
        ({"name": "ftrl", "lr_power": 0.5}, "ftrl: lr_power must be at most 0"),
        ({"name": "ftrl", "l1": -1}, "ftrl: l1 must be at least 0"),
        ({"name": "lamb", "betas": [0.9, 2]}, "lamb: betas must be two in"),
        ({"name": "lamb", "adapt": 1}, "lamb.adapt must be like True"),
    ],
)
def test_bad_specs_are_refused(spec: dict[str, Any], words: str) -> None:
    with pytest.raises(ArgumentError, match=words):
        rule_from_spec(spec)


@every_rule
def test_maximize_is_the_step_of_the_other_gradient(rule: UpdateRule) -> None:
    for dtype in (np.float32, np.float16):
        one, gradients = arrays((3, 4), dtype=dtype)
        other, kept = one.copy(), [g.copy() for g in gradients]
        run(dataclasses.replace(rule, maximize=True), one, gradients)
        np.testing.assert_array_equal(gradients, kept)
        run(rule, other, [-g for g in gradients])
        np.testing.assert_array_equal(one, other)


def test_a_rule_that_needs_more_than_an_element_says_so() -> None:
    AdamRule().require_elementwise("this cuts")
    with pytest.raises(ArgumentError, match="lamb needs a whole parameter at once, but this cuts: use"):
        LAMBRule().require_elementwise("this cuts")


def rows_of(parameter: np.ndarray, rows: list[int], seed: int = 0) -> SparseRows:
    values = np.random.default_rng(seed).standard_normal((len(rows), *parameter.shape[1:]))
    return SparseRows(np.array(rows, np.int64), values.astype(parameter.dtype), parameter.shape)


SPARSE: list[UpdateRule] = [
    SGDRule(lr=0.1),
    AdagradRule(lr=0.1, initial_accumulator_value=0.1),
    RowWiseAdagradRule(lr=0.1),
    FTRLRule(lr=0.1, l1=0.01, beta=1.0),
    AdamRule(lr=0.1, amsgrad=True),
    AdamWRule(lr=0.1, weight_decay=0.0),
]


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("rule", SPARSE, ids=label)
def test_a_sparse_gradient_touches_its_rows_only(
    rule: UpdateRule, dtype: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    update = type(rule).update_block

    def counted(self: UpdateRule, p: np.ndarray, *rest: Any) -> None:
        seen.append(len(p))
        update(self, p, *rest)

    monkeypatch.setattr(type(rule), "update_block", counted)
    parameter = np.full((1000, 3), np.nan, dtype)  # whoever computed with another row would spread NaN
    state = rule.init_state(parameter)
    for slot in state.values():
        slot[...] = np.nan
    rows = [7, 3, 998, 3]
    fresh = rule.init_state(np.zeros((3, 3), dtype))
    used = [3, 7, 998]
    parameter[used] = 1
    for name, slot in fresh.items():
        state[name][used] = slot
    before = {name: slot.copy() for name, slot in state.items()}
    for step in (1, 2):
        rule.update(parameter, rows_of(parameter, rows, step), state, step)
    assert seen == [3, 3]
    others = np.setdiff1d(np.arange(1000), used)
    assert np.isnan(parameter[others]).all() and np.isfinite(parameter[used]).all()
    assert (parameter[used] != 1).all()
    for name, slot in state.items():
        assert slot[others].tobytes() == before[name][others].tobytes()
        assert np.isfinite(slot[used]).all()


@pytest.mark.parametrize("rule", SPARSE[:4], ids=label)
def test_a_sparse_gradient_is_the_dense_one(rule: UpdateRule) -> None:
    dense = np.zeros((9, 4), np.float32)
    sparse, dense_state, state = dense.copy(), rule.init_state(dense), rule.init_state(dense)
    for step, rows in enumerate([[1, 5, 1], [5], [], [8, 0, 5]], 1):
        gradient = rows_of(dense, rows, step)
        rule.update(dense, gradient.to_dense(), dense_state, step)
        rule.update(sparse, gradient, state, step)
        np.testing.assert_array_equal(sparse, dense)


def test_many_rows_are_updated_by_several_threads() -> None:
    rule, shape = AdagradRule(lr=0.1), (5000, 300)  # six blocks
    dense = np.zeros(shape, np.float32)
    sparse, dense_state, state = dense.copy(), rule.init_state(dense), rule.init_state(dense)
    gradient = rows_of(dense, [*range(0, 5000, 2), 0, 4998])
    rule.update(dense, gradient.to_dense(), dense_state, 1)
    set_update_threads(3)
    rule.update(sparse, gradient, state, 1)
    np.testing.assert_array_equal(sparse, dense)
    np.testing.assert_array_equal(state["sum"], dense_state["sum"])


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        (SGDRule(momentum=0.9), "sgd can't apply a sparse gradient to its rows alone: momentum changes"),
        (SGDRule(weight_decay=0.1), "weight_decay changes every row"),
        (AdamRule(weight_decay=0.1), "weight_decay changes every row"),
        (AdamWRule(), "adamw can't .* weight_decay changes every row in each step. Make the embedding with"),
        (AdagradRule(weight_decay=0.1), "weight_decay changes every row"),
        (FTRLRule(lr=schedule.Cosine(0.1, 3)), "schedule changes every row"),
        (RMSpropRule(), "rmsprop has no form for it.* sparse=False, or use SGD without momentum, Adam"),
        (LAMBRule(), "lamb has no form"),
    ],
    ids=lambda value: label(value) if isinstance(value, UpdateRule) else "",
)
def test_where_every_row_changes_a_sparse_gradient_is_refused(rule: UpdateRule, words: str) -> None:
    parameter = np.ones((3, 2), np.float32)
    with pytest.raises(ArgumentError, match=words):
        rule.update(parameter, rows_of(parameter, [1]), {}, 1)
    np.testing.assert_array_equal(parameter, 1)


TORCH = {"sgd": "SGD", "adam": "Adam", "adamw": "AdamW", "adagrad": "Adagrad", "rmsprop": "RMSprop"}


def combinations(kind: type[UpdateRule], **values: tuple[Any, ...]) -> list[UpdateRule]:
    """A rule for each combination of the values that torch allows."""
    made = []
    for chosen in itertools.product(*values.values()):
        options = dict(zip(values, chosen))
        if options.get("nesterov") and (not options["momentum"] or options["dampening"]):
            continue
        made.append(kind(**options, maximize=len(made) % 2 == 1))
    return made


LRS, DECAYS = (0.1, schedule.Step(0.1, 7, gamma=0.5)), (0.0, 0.03)
TABLE = [
    *combinations(
        SGDRule, lr=LRS, momentum=(0.0, 0.9), dampening=(0.0, 0.3), weight_decay=DECAYS,
        nesterov=(False, True),
    ),
    *combinations(
        AdamRule, lr=LRS, betas=((0.9, 0.999), (0.5, 0.8)), eps=(1e-8, 0.1), weight_decay=DECAYS,
        amsgrad=(False, True),
    ),
    *combinations(
        AdamWRule, lr=LRS, betas=((0.9, 0.99),), eps=(1e-3,), weight_decay=DECAYS, amsgrad=(False, True)
    ),
    *combinations(
        AdagradRule, lr=LRS, lr_decay=(0.0, 0.1), weight_decay=DECAYS, initial_accumulator_value=(0.0, 0.5),
        eps=(1e-10, 0.1),
    ),
    *combinations(
        RMSpropRule, lr=LRS, alpha=(0.9, 0.99), eps=(1e-8, 0.1), weight_decay=DECAYS, momentum=(0.0, 0.9),
        centered=(False, True),
    ),
]  # fmt: skip


@pytest.mark.oracle
@pytest.mark.parametrize("name", TORCH)
def test_equals_torch_for_every_option(name: str) -> None:
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    start, gradients = rng.standard_normal(20), rng.standard_normal((20, 20))
    chosen = [rule for rule in TABLE if rule.name == name]
    assert len(chosen) >= 8
    for rule in chosen:
        spec = {key: value for key, value in rule.spec().items() if key != "name"} | {"lr": rule.rate(1)}
        theirs = torch.nn.Parameter(torch.tensor(start))
        optimizer = getattr(torch.optim, TORCH[name])([theirs], **spec)
        parameter = start.copy()
        state = rule.init_state(parameter)
        for step, gradient in enumerate(gradients, 1):
            optimizer.param_groups[0]["lr"] = rule.rate(step)
            theirs.grad = torch.tensor(gradient)
            optimizer.step()
            rule.update(parameter, gradient, state, step)
        np.testing.assert_allclose(
            parameter, theirs.detach().numpy(), rtol=1e-12, atol=1e-13, err_msg=str(rule)
        )


@pytest.mark.oracle
def test_lazy_adam_equals_torchs_sparse_adam() -> None:
    torch = pytest.importorskip("torch")
    start = np.random.default_rng(0).standard_normal((6, 3))
    theirs = torch.nn.Parameter(torch.tensor(start))
    # Theirs adds eps to another root than their Adam does; one so small hides that.
    optimizer = torch.optim.SparseAdam([theirs], lr=0.1, betas=(0.9, 0.99), eps=1e-30)
    rule = AdamRule(lr=0.1, betas=(0.9, 0.99), eps=1e-30)
    state = rule.init_state(start)
    for step, rows in enumerate([[1, 5, 1], [5, 2], [0], [5, 1]], 1):
        gradient = rows_of(start, rows, step)
        indices, values = torch.tensor([rows]), torch.tensor(gradient.values)
        theirs.grad = torch.sparse_coo_tensor(indices, values, start.shape, check_invariants=True)
        optimizer.step()
        rule.update(start, gradient, state, step)
    np.testing.assert_allclose(start, theirs.detach().numpy(), rtol=1e-12)
