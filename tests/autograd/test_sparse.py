import numpy as np
import pytest

from psframework.autograd import SparseRows, Tensor, backward, grad, tensor
from psframework.autograd.record import record
from psframework.backend import bfloat16
from psframework.errors import ArgumentError
from psframework.testing.strict_device import StrictDevice

ROWS = np.array([3, 1, 3, 0])
VALUES = np.arange(8.0).reshape(4, 2)
DENSE = np.array([[6.0, 7], [2, 3], [0, 0], [4, 6], [0, 0]])


def sparse(dtype=np.float64):
    return SparseRows(ROWS, VALUES.astype(dtype), (5, 2))


def rows_of(table, ids, sparse=True):
    """`table[ids]`, with a gradient of rows."""
    ids = np.asarray(ids)

    def rule(g):
        rows = SparseRows(ids, g, (5, 2))
        return (rows if sparse else rows.to_dense(),)

    return record("rows_of", table.data[ids], rule, (table,))


def table(dtype=np.float64):
    return tensor(np.ones((5, 2), dtype), True)


def test_it_describes_itself_as_an_array_does():
    s = sparse(np.float32)
    assert (s.shape, s.dtype, s.ndim, s.size, s.nbytes) == ((5, 2), np.float32, 2, 10, 64)
    assert s.rows.dtype == np.int64 and repr(s) == "<SparseRows 4 rows of (5, 2), float32>"


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, bfloat16])
def test_coalesce_sums_equal_rows(dtype):
    once = sparse(dtype).coalesce()
    np.testing.assert_array_equal(once.rows, [0, 1, 3])
    np.testing.assert_array_equal(once.values.astype(float), DENSE[[0, 1, 3]])
    assert once.dtype == dtype and once.coalesce() is once
    np.testing.assert_array_equal(sparse(dtype).to_dense().astype(float), DENSE)


def test_a_row_is_summed_the_same_whatever_other_rows_there_are():
    rng = np.random.default_rng(0)
    rows, values = rng.integers(0, 9, 500), rng.standard_normal((500, 3)).astype(np.float32)
    together = SparseRows(rows, values, (9, 3)).coalesce()
    for row in range(9):
        alone = SparseRows(rows[rows == row], values[rows == row], (9, 3)).coalesce()
        np.testing.assert_array_equal(alone.values[0], together.values[row])


def test_16_bits_are_summed_in_float32():
    many = SparseRows(np.zeros(4000, int), np.full((4000, 1), 0.1, np.float16), (2, 1))
    np.testing.assert_allclose(many.to_dense()[0], 400, rtol=1e-3)


def test_no_rows_and_tables_of_one_axis():
    none = SparseRows(np.zeros(0, int), np.zeros((0, 2)), (5, 2))
    assert not none.to_dense().any() and len(none.coalesce().rows) == 0
    vector = SparseRows(np.array([1, 1]), np.array([2.0, 3.0]), (3,))
    np.testing.assert_array_equal(vector.to_dense(), [0, 5, 0])


def test_arithmetic():
    s = sparse()
    for scaled in (s * 2, 2 * s, s / 0.5, s * np.float64(2), s * np.array(2.0), -(s * -2)):
        assert isinstance(scaled, SparseRows)
        np.testing.assert_array_equal(scaled.to_dense(), 2 * DENSE)
    assert isinstance(s + s, SparseRows)
    np.testing.assert_array_equal((s + s).to_dense(), 2 * DENSE)
    ones = np.ones((5, 2))
    for total in (s + ones, ones + s):
        np.testing.assert_array_equal(total, DENSE + 1)
    np.testing.assert_array_equal(ones, 1)
    assert s.astype(np.float32).dtype == np.float32 and s.astype(np.float64) is s
    assert not np.shares_memory(s.copy().values, s.values)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (
            lambda: SparseRows(np.ones(2), np.ones((2, 2)), (5, 2)),
            "rows are integers of one axis, not float64",
        ),
        (lambda: SparseRows(ROWS, np.ones((3, 2)), (5, 2)), r"need values of shape \(4, 2\), not \(3, 2\)"),
        (lambda: sparse().add_to(np.ones((4, 2))), r"shape \(5, 2\) added to an array of shape \(4, 2\)"),
        (lambda: sparse() + SparseRows(ROWS, VALUES, (6, 2)), "do not add"),
    ],
)
def test_bad_input(call, words):
    with pytest.raises(ArgumentError, match=words):
        call()


def test_a_leaf_gets_coalesced_rows_that_are_its_own():
    t = table(np.float32)
    out = rows_of(t, ROWS)
    out.backward(VALUES)
    assert isinstance(t.grad, SparseRows) and t.grad.coalesced and t.grad.dtype == np.float32
    np.testing.assert_array_equal(t.grad.to_dense(), DENSE)
    kept = t.grad
    rows_of(t, [2]).backward(np.ones((1, 2)))
    np.testing.assert_array_equal(t.grad.rows, [0, 1, 2, 3])
    np.testing.assert_array_equal(kept.rows, [0, 1, 3])
    seed = np.ones((1, 2))
    mine = backward([rows_of(t, [2])], [seed])[t]
    assert not np.shares_memory(mine.values, seed)


@pytest.mark.parametrize("order", [(True, False), (False, True), (True, True), (True, False, True, False)])
def test_contributions_are_summed_whatever_they_are(order):
    t = table()
    backward_of = sum(rows_of(t, ROWS, sparse=kind).sum() for kind in order)
    found = backward([backward_of])[t]
    assert isinstance(found, SparseRows) == all(order)
    dense = found.to_dense() if isinstance(found, SparseRows) else found
    expected = len(order) * np.array([1.0, 1, 0, 2, 0])[:, None] * np.ones(2)
    np.testing.assert_array_equal(dense, expected)


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("second", [True, False])
def test_grad_accumulates(first, second):
    t = table()
    for kind in (first, second):
        rows_of(t, ROWS, sparse=kind).backward(VALUES)
    assert isinstance(t.grad, SparseRows) == (first and second)
    dense = t.grad.to_dense() if isinstance(t.grad, SparseRows) else t.grad
    np.testing.assert_array_equal(dense, 2 * DENSE)


def test_a_buffer_stays_dense():
    t, buffer = table(), np.full((5, 2), 9.0)
    t.grad_buffer = buffer
    for times in (1, 2):
        rows_of(t, ROWS).backward(VALUES)
        assert t.grad is buffer
        np.testing.assert_array_equal(buffer, times * DENSE)
    t.grad = sparse()
    rows_of(t, ROWS, sparse=False).backward(VALUES)
    assert t.grad is buffer
    np.testing.assert_array_equal(buffer, 2 * DENSE)


def test_an_operation_before_the_table_sees_an_array():
    base = table()
    h = base * 2
    h.retain_grad()
    rows_of(h, ROWS).backward(VALUES)
    np.testing.assert_array_equal(h.grad, DENSE)
    np.testing.assert_array_equal(base.grad, 2 * DENSE)


def test_grad_hooks_and_assignment():
    t, seen = table(), []
    t.register_hook(lambda g: seen.append(g) or g * 3)
    (found,) = grad(rows_of(t, ROWS), t, VALUES)
    assert isinstance(seen[0], SparseRows) and seen[0].coalesced
    np.testing.assert_array_equal(found.to_dense(), 3 * DENSE)
    t.grad = sparse()
    assert isinstance(t.grad, SparseRows)
    with pytest.raises(ArgumentError, match=r"shape \(6, 2\)"):
        t.grad = SparseRows(ROWS, VALUES, (6, 2))
    t.register_hook(lambda g: g.to_dense())
    assert isinstance(backward([rows_of(t, ROWS)], [VALUES])[t], np.ndarray)


def test_on_a_device():
    device = StrictDevice("gpu-sparse")
    t = Tensor(device.to_device(np.ones((5, 2))), True)
    ids = device.to_device(ROWS)

    def take(keep_rows):
        def rule(g):
            rows = SparseRows(ids, g, (5, 2))
            return (rows if keep_rows else rows.to_dense(),)

        return record("take", t.data[ids], rule, (t,))

    take(True).backward(device.to_device(VALUES))
    np.testing.assert_array_equal(device.asnumpy(t.grad.to_dense()), DENSE)
    take(False).backward(device.to_device(VALUES))
    np.testing.assert_array_equal(device.asnumpy(t.grad), 2 * DENSE)
    both = take(True).sum() + take(False).sum() + take(True).sum()
    assert device.asnumpy(backward([both])[t])[3, 0] == 6
