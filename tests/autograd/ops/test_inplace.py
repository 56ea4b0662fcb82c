import numpy as np
import pytest

from psframework.autograd import no_grad, tensor
from psframework.errors import ArgumentError, AutogradError
from psframework.testing.gradcheck import gradcheck

X = np.array([1.0, 2.0, 3.0])


def test_constants_change_in_place():
    t = tensor(X)
    data, same = t.data, t
    t += 1
    t -= X
    t *= 4
    t /= 2
    assert t is same and t.data is data and t.version == 4
    np.testing.assert_array_equal(data, [2, 2, 2])
    t[1:] = tensor([5.0, 6.0])
    t[0] = 7
    t[t > 6] = 0
    np.testing.assert_array_equal(data, [0, 5, 6])
    assert t.version == 7


def test_a_recorded_tensor_goes_on_as_the_result():
    x, y = tensor(X, True), tensor(X, True)
    h = x * 2
    h += y
    h *= 3
    h.sum().backward()
    np.testing.assert_array_equal(x.grad, [6, 6, 6])
    np.testing.assert_array_equal(y.grad, [3, 3, 3])


def test_a_constant_joins_the_graph():
    x, total = tensor(X, True), tensor(np.zeros(3))
    total += x
    total += x
    total.sum().backward()
    np.testing.assert_array_equal(x.grad, [2, 2, 2])


def test_leaves_change_under_no_grad_only():
    w = tensor(X, True)
    with pytest.raises(AutogradError, match=r"add_: a leaf that requires grad.*no_grad"):
        w += 1
    with no_grad():
        w -= 1
    np.testing.assert_array_equal(w.data, [0, 1, 2])
    assert w.is_leaf and w.requires_grad


def test_views_forbid_a_recorded_change():
    h = tensor(X, True) * 2
    first = h[:1]
    with pytest.raises(AutogradError, match="views share this memory"):
        h *= 2
    with pytest.raises(AutogradError, match="views share this memory"):
        first += 1


def test_what_was_detached_forbids_nothing_and_is_noticed():
    x = tensor(X, True)
    h = x * 2
    constant = h.detach()
    h *= 3
    np.testing.assert_array_equal(constant.data, h.data)
    h.sum().backward()
    np.testing.assert_array_equal(x.grad, np.full_like(X, 6))
    h = x * 2
    squares, state = (h * h).sum(), h.detach()
    state += x  # as for the state of a recurrent net, cut off from the steps before
    with pytest.raises(AutogradError, match="changed in place 1 time"):
        squares.backward()
    state.sum().backward()
    np.testing.assert_array_equal(x.grad, np.full_like(X, 7))


KEYS = {
    "slice": slice(1, 3),
    "element": 1,
    "all": ...,
    "mask": np.array([True, False, True]),
    "rows": np.array([2, 0]),
    "tensor": tensor(np.array([0, -1])),
    "list": [0, 2],
}


@pytest.mark.parametrize("key", KEYS)
def test_assignment_is_recorded(key):
    key = KEYS[key]
    value = tensor(X)[key].data

    def op(x, y):
        h = tensor(x) * 2 if x is X else x * 2
        h[key] = y * y
        return h * h

    gradcheck(op, [X.copy(), np.array(value)])
    gradcheck(lambda x: op(x, np.array(value)), [X.copy()])
    gradcheck(lambda y: op(X, y), [np.array(value)])


def test_assigned_values_broadcast_and_build_a_constant():
    def rows(a, b):
        out = tensor(np.zeros((3, 2)))
        out[0] = a  # (1, 2) into (2,)
        out[1:] = b  # () into (2, 2)
        return out

    gradcheck(rows, [np.array([[1.0, 2.0]]), np.array(3.0)])


def test_of_values_for_one_place_the_last_counts():
    x, values = tensor(X * 1, True), tensor(np.array([5.0, 6.0, 7.0]), True)
    h = x * 1
    h[np.array([0, 2, 0])] = values
    np.testing.assert_array_equal(h.data, [7, 2, 6])
    h.sum().backward()
    np.testing.assert_array_equal(x.grad, [0, 1, 0])
    np.testing.assert_array_equal(values.grad, [0, 1, 1])


def test_assignment_is_noticed_by_who_saved_the_array():
    x = tensor(X, True)
    h = x * 1
    squared = h * h
    h[0] = 0.0
    with pytest.raises(AutogradError, match=r"'multiply'.*changed in place"):
        squared.sum().backward()


def test_assignment_is_refused_where_its_gradient_would_be_wrong():
    x = tensor(X, True)
    with pytest.raises(AutogradError, match=r"assign: a leaf that requires grad.*no_grad"):
        x[0] = 1.0
    h = x * 1
    first = h[:1]
    with pytest.raises(AutogradError, match="assign: views share this memory"):
        h[1] = first
    counts = tensor(np.zeros(3, np.int64))
    with pytest.raises(AutogradError, match="assign: a tensor of dtype int64 can't hold"):
        counts[:] = x
    np.testing.assert_array_equal(h.data, X)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda t: t.__iadd__(np.zeros((2, 3))), r"add_: .*\(3,\) float64, \(2, 3\)"),
        (lambda t: t.__iadd__(np.zeros((1, 3))), r"add_: \(1, 3\) does not fit into \(3,\)"),
        (lambda t: t.__isub__(tensor(np.zeros((1, 3)), True)), r"subtract_: \(1, 3\) does not fit"),
        (lambda t: t.__iadd__(np.zeros(2)), r"add_: .*broadcast.*\(3,\) float64, \(2,\) float64"),
        (lambda t: tensor([1]).__itruediv__(2), "divide_: float64 does not fit into int64: convert"),
        (lambda t: t.__setitem__(slice(2), np.zeros(3)), "assign: could not broadcast"),
        (lambda t: t.__setitem__(9, 1.0), "assign: index 9 is out of bounds"),
        (lambda t: t.__imul__("a"), "takes tensors, arrays and numbers"),
    ],
)
def test_bad_input(change, words):
    t = tensor(X)
    with pytest.raises(ArgumentError, match=words):
        change(t)
    np.testing.assert_array_equal(t.data, X)
    assert t.version == 0


def test_divided_by_itself():
    x = tensor(X, True)
    h = x * 2
    h /= h
    h.sum().backward()
    np.testing.assert_array_equal(x.grad, [0, 0, 0])


def test_powers_and_remainders_in_place():
    x, p = tensor(X, True), tensor(X, True)
    h = same = x * 2
    h **= p
    h.sum().backward()
    np.testing.assert_allclose(x.grad, X * (2 * X) ** (X - 1) * 2)
    np.testing.assert_allclose(p.grad, (2 * X) ** X * np.log(2 * X))
    h = x * 3
    h %= x * 2
    h.sum().backward()
    counts = tensor([5, 7])
    view = counts[1:]
    view //= 2
    view **= 2
    assert h is not same and counts.tolist() == [5, 9] and same.tolist() == [2, 16, 216]


def test_an_array_that_can_not_be_written_says_what_to_do():
    array = np.ones(3)
    array.flags.writeable = False
    large = tensor(np.ones(3))
    large.data = array
    for change in (lambda: large.__iadd__(1.0), lambda: large.__setitem__(0, 2.0)):
        with pytest.raises(ArgumentError, match=r"its array is read-only.*clone\(\) it first"):
            change()
    mine = large.clone()
    mine += 1.0
    assert mine.tolist() == [2, 2, 2] and large.tolist() == [1, 1, 1]


def test_a_number_that_the_dtype_can_not_hold_is_refused():
    small = tensor(np.zeros(2, np.uint8))
    for change in (lambda: small.__setitem__(0, 300), lambda: small.__iadd__(300)):
        with pytest.raises(ArgumentError, match="300 out of bounds"):
            change()
    assert small.tolist() == [0, 0]
