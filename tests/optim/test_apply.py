"""One step over one parameter: any shape, several gradients, blocks, threads; rules that need the whole."""

from collections.abc import Iterator

import numpy as np
import pytest

from psframework.errors import ArgumentError
from psframework.optim import (
    AdagradRule,
    AdamRule,
    FTRLRule,
    LAMBRule,
    RMSpropRule,
    RowWiseAdagradRule,
    SGDRule,
    UpdateRule,
    apply_blocks,
    set_update_threads,
    update_threads,
)
from psframework.optim.blocks import BLOCK

RULES: list[UpdateRule] = [
    SGDRule(lr=0.1, momentum=0.9),
    AdamRule(lr=0.01, weight_decay=0.1),
    AdagradRule(lr=0.1),
    RMSpropRule(lr=0.01),
    FTRLRule(lr=0.1, l1=0.01),
    RowWiseAdagradRule(lr=0.1),
    LAMBRule(lr=0.1, weight_decay=0.1),
]
every_rule = pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    before = update_threads()
    yield
    set_update_threads(before)


def arrays(shape: tuple[int, ...], n: int = 3) -> tuple[np.ndarray, list[np.ndarray]]:
    rng = np.random.default_rng(0)
    made = [rng.standard_normal(shape, np.float32) for _ in range(n + 1)]
    return made[0], made[1:]


def run(rule: UpdateRule, parameter: np.ndarray, gradients: list[np.ndarray]) -> dict[str, np.ndarray]:
    """Steps in place; returns the state."""
    state = rule.init_state(parameter)
    for step, gradient in enumerate(gradients, 1):
        rule.update(parameter, gradient, state, step)
    return state


SHAPES = [(), (0,), (3, 0), (7,), (5, 11), (2, 3, 4), (3, BLOCK + 5), (2 * BLOCK + 3, 3)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("rule", [RULES[1], RULES[5]], ids=lambda rule: rule.name)
def test_any_shape_and_any_strides_give_the_same_bits(rule: UpdateRule, shape: tuple[int, ...]) -> None:
    plain, gradients = arrays(shape)
    strided = np.array(plain, order="F")
    run(rule, plain, gradients)
    run(rule, strided, [np.array(g, order="F") for g in gradients])
    np.testing.assert_array_equal(strided, plain)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_rule_of_the_whole_parameter_takes_any_shape(shape: tuple[int, ...]) -> None:
    plain, gradients = arrays(shape, 1)
    strided, flat = np.array(plain, order="F"), plain.flatten()
    rule = LAMBRule(lr=0.1)
    run(rule, plain, gradients)
    run(rule, strided, [np.array(g, order="F") for g in gradients])
    run(rule, flat, [g.flatten() for g in gradients])
    np.testing.assert_allclose(strided, plain, rtol=1e-6)  # other blocks, so other rounding of the norms
    np.testing.assert_array_equal(flat.reshape(shape), plain)


@pytest.mark.parametrize("shape", [(13 * BLOCK // 64 + 3, 64), (14, BLOCK + 3)])
@pytest.mark.parametrize("rule", RULES[-2:], ids=lambda rule: rule.name)
def test_threads_change_no_bit_of_rows_and_norms(rule: UpdateRule, shape: tuple[int, ...]) -> None:
    start, gradients = arrays(shape, 1)
    results = []
    for threads in (1, 3):
        set_update_threads(threads)
        parameter = start.copy()
        results.append((parameter, run(rule, parameter, gradients)))
    np.testing.assert_array_equal(results[0][0], results[1][0])
    for name, slot in results[0][1].items():
        np.testing.assert_array_equal(slot, results[1][1][name])


@pytest.mark.parametrize("columns", [1, 3, 64, 1000])
def test_bits_of_a_row_do_not_depend_on_the_rows_beside_it(columns: int) -> None:
    rule = RowWiseAdagradRule(lr=0.1, weight_decay=0.1)
    whole, gradients = arrays((257, columns))
    pieces = whole.copy()
    run(rule, whole, gradients)
    for rows in (slice(0, 1), slice(1, 3), slice(3, 200), slice(200, 257)):
        run(rule, pieces[rows], [g[rows] for g in gradients])
    np.testing.assert_array_equal(pieces, whole)


@every_rule
def test_several_gradients_are_averaged_in_order(rule: UpdateRule) -> None:
    parameter, gradients = arrays((50, 20))
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
@every_rule
def test_out_gets_the_new_values(rule: UpdateRule, n: int) -> None:
    parameter, gradients = arrays((n,), 1)
    out = np.full(n, np.nan, np.float32)
    apply_blocks(rule, parameter, gradients[0], rule.init_state(parameter), 1, out)
    np.testing.assert_array_equal(out, parameter)


def test_integer_gradients_are_exact() -> None:
    parameter = np.zeros(4, np.float32)
    for _ in range(100):
        for step in (1, 2):
            SGDRule(lr=1.0).update(parameter, np.ones(4, np.float32), {}, step)
    np.testing.assert_array_equal(parameter, np.full(4, -200, np.float32))


def test_bad_arrays_are_refused() -> None:
    rule, parameter = SGDRule(), np.zeros(3, np.float32)
    with pytest.raises(ArgumentError, match=r"gradient of a parameter of shape \(3,\) .* \(3,\), not \(1,\)"):
        rule.update(parameter, np.zeros(1, np.float32), {}, 1)
    table = np.zeros((2, 3), np.float32)
    with pytest.raises(ArgumentError, match=r"sum of a parameter .* must have shape \(2, 1\), not"):
        RowWiseAdagradRule().update(table, table, {"sum": table}, 1)
    with pytest.raises(ArgumentError, match=r"out of a parameter"):
        apply_blocks(rule, parameter, parameter, {}, 1, out=np.zeros(4, np.float32))
    half = np.zeros(3, np.float16)
    with pytest.raises(
        ArgumentError, match="float16 parameter is updated in float32, but its state has no 'mas"
    ):
        rule.update(half, half, {}, 1)
    with pytest.raises(ArgumentError, match="no gradient"):
        apply_blocks(rule, parameter, [], {}, 1)
    with pytest.raises(ArgumentError, match="not int64"):
        rule.update(np.zeros(3, np.int64), np.zeros(3, np.int64), {}, 1)
