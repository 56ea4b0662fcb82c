import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from psframework.autograd import tensor
from psframework.autograd.ops.pad import pad
from psframework.errors import ArgumentError
from psframework.testing.gradcheck import gradcheck

X = np.random.default_rng(7).standard_normal((2, 3, 4))


@settings(max_examples=40)
@given(st.data())
def test_as_numpy(data):
    shape = data.draw(st.lists(st.integers(1, 3), max_size=3))
    widths = data.draw(
        st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=len(shape), max_size=len(shape))
    )
    mode = data.draw(st.sampled_from(["constant", "edge", "reflect", "symmetric", "wrap"]))
    x = np.random.default_rng(1).standard_normal(shape)
    np.testing.assert_array_equal(pad(x, widths or 1, mode).data, np.pad(x, widths or 1, mode))
    gradcheck(lambda t: pad(t, widths or 1, mode), [x])


def test_one_width_for_all_and_one_pair_for_all():
    for widths in (1, (1, 2), [(1, 2)], [[0, 1], [2, 0], [1, 1]]):
        np.testing.assert_array_equal(pad(X, widths).data, np.pad(X, widths))


def test_gradients_in_the_border_add_up():
    x = tensor(np.arange(3.0), True)
    pad(x, (2, 3), "replicate").sum().backward()
    np.testing.assert_array_equal(x.grad, [3, 1, 4])


def test_the_dtype_stays():
    half = tensor(X.astype(np.float16), True)
    for mode in ("constant", "circular"):
        out = pad(half, 1, mode)
        out.sum().backward()
        assert out.dtype == half.grad.dtype == np.float16


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: pad(X, 1, "mirror"), "no mode 'mirror': use one of constant, edge"),
        (lambda: pad(X, [(1, 1), (2, 2)]), "no pair for each of 3 axes"),
        (lambda: pad(X, -1), "whole numbers from 0 on"),
        (lambda: pad(X, 1.5), "whole numbers from 0 on"),
        (lambda: pad(np.zeros((0, 2)), 1, "edge"), "nothing to repeat"),
    ],
)
def test_bad_input(call, words):
    with pytest.raises(ArgumentError, match=words):
        call()
