import numpy as np
import pytest

from psframework.autograd import no_grad, tensor
from psframework.errors import ArgumentError, AutogradError

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


def test_assignment_is_not_recorded():
    x = tensor(X, True)
    for target, value in ((x * 1, 0.0), (tensor(np.zeros(3)), x)):
        with pytest.raises(AutogradError, match="where, concatenate or stack"):
            target[:] = value


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda t: t.__iadd__(np.zeros((2, 3))), r"add_: \(2, 3\) does not fit into shape \(3,\)"),
        (lambda t: t.__setitem__(slice(2), np.zeros(3)), "does not fit"),
        (lambda t: t.__setitem__(9, 1.0), "does not fit"),
        (lambda t: t.__imul__("a"), "takes tensors, arrays and numbers"),
    ],
)
def test_bad_input(change, words):
    t = tensor(X)
    with pytest.raises(ArgumentError, match=words):
        change(t)
    np.testing.assert_array_equal(t.data, X)
    assert t.version == 0
