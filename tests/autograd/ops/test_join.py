import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from psframework.autograd import no_grad, tensor
from psframework.autograd.ops import join
from psframework.errors import ArgumentError
from psframework.testing.gradcheck import gradcheck

rng = np.random.default_rng(3)
X, Y = rng.standard_normal((2, 3, 4)), rng.standard_normal((4, 6, 8))[::2, ::2, ::-2]

CUTS = {
    "split": (join.split, np.split, (3, 1)),
    "split at": (join.split, np.split, ([1, 3], -1)),
    "split at the same place": (join.split, np.split, ([1, 1, 2], -1)),
    "split beyond": (join.split, np.split, ([2, 9], 1)),
    "split from the end": (join.split, np.split, ([-1], 1)),
    "split backwards": (join.split, np.split, ([3, 1], -1)),
    "array_split": (join.array_split, np.array_split, (3, 2)),
    "array_split in more parts than there are": (join.array_split, np.array_split, (5, 1)),
}


@pytest.mark.parametrize("case", CUTS)
def test_cuts_as_numpy(case):
    ours, theirs, args = CUTS[case]
    for array in (X, Y):
        found, expected = ours(tensor(array), *args), theirs(array, *args)
        assert isinstance(found, tuple) and len(found) == len(expected)
        for part, wanted in zip(found, expected):
            np.testing.assert_array_equal(part.data, wanted)


def test_chunk_and_unbind_as_torch_has_them():
    assert [part.shape for part in join.chunk(X, 3, -1)] == [(2, 3, 2), (2, 3, 2)]
    assert [part.shape for part in join.chunk(X, 2, 1)] == [(2, 2, 4), (2, 1, 4)]
    assert [part.shape for part in join.chunk(np.zeros((0, 2)), 3)] == [(0, 2)]
    assert join.unbind(np.zeros((0, 2))) == ()
    for part, wanted in zip(join.unbind(X, -1), np.moveaxis(X, -1, 0)):
        np.testing.assert_array_equal(part.data, wanted)


def test_parts_are_views_of_one_node():
    x = tensor(X, True)
    h = x * 1
    parts = join.split(h, 2, -1)
    assert all(np.shares_memory(part.data, h.data) for part in parts)
    (parts[0] * 2).sum().backward()  # the other part is not used
    np.testing.assert_array_equal(x.grad, np.repeat([[[2.0, 2, 0, 0]]], 6, 0).reshape(2, 3, 4))
    constant = tensor(X)
    part = join.split(constant, 2, -1)[1]
    with no_grad():
        part *= 0
    assert constant.version == 1 and not constant.data[..., 2:].any()


def test_gradients_of_overlapping_and_reused_parts():
    gradcheck(
        lambda x: join.concatenate([a * (i + 2) for i, a in enumerate(join.split(x, [3, 1], -1))], -1), [X]
    )
    gradcheck(lambda x: join.stack([a * b for a, b in [join.unbind(x)] * 2]), [X])


def test_one_tensor_many_times():
    t = tensor(X, True)
    join.concatenate([t, t, X]).sum().backward()
    np.testing.assert_array_equal(t.grad, np.full(X.shape, 2.0))


def test_joined_dtypes_give_each_its_own():
    a, b = tensor(X.astype(np.float32), True), tensor(X.astype(np.float16), True)
    out = join.stack([a, b])
    assert out.dtype == np.float32
    out.sum().backward()
    assert (a.grad.dtype, b.grad.dtype) == (np.float32, np.float16)


@pytest.mark.parametrize("name", ["hstack", "vstack", "dstack", "stack"])
@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (2, 3, 4)])
def test_stacks_as_numpy(name, shape):
    parts = [rng.standard_normal(shape) for _ in range(2)]
    np.testing.assert_array_equal(getattr(join, name)(parts).data, getattr(np, name)(parts))
    gradcheck(lambda *xs: getattr(join, name)(xs), parts)


@settings(max_examples=25)
@given(st.data())
def test_concatenate_and_split_again(data):
    shape = data.draw(st.lists(st.integers(0, 3), min_size=1, max_size=4))
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    lengths = data.draw(st.lists(st.integers(0, 3), min_size=1, max_size=4))
    parts = [
        rng.standard_normal([*shape[: axis % len(shape)], n, *shape[axis % len(shape) + 1 :]])
        for n in lengths
    ]
    joined = join.concatenate(parts, axis)
    np.testing.assert_array_equal(joined.data, np.concatenate(parts, axis))
    for part, wanted in zip(join.split(joined, np.cumsum(lengths)[:-1].tolist(), axis), parts):
        np.testing.assert_array_equal(part.data, wanted)
    gradcheck(lambda *xs: join.concatenate(xs, axis), parts)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: join.concatenate([]), "no tensors"),
        (lambda: join.concatenate([X, X[:, :, :2]]), r"concatenate: .*\(2, 3, 4\) float64, \(2, 3, 2\)"),
        (lambda: join.concatenate([X, X], 3), "axis 3"),
        (lambda: join.concatenate([np.array(1.0)]), "axis 0"),
        (lambda: join.stack([X, X[0]]), "of one shape"),
        (lambda: join.hstack([]), "no tensors"),
        (lambda: join.split(X, 2, 1), "3 elements along axis 1 in 2 equal parts: use array_split"),
        (lambda: join.split(X, 0), "in 0 equal parts"),
        (lambda: join.array_split(X, 0), "0 parts"),
        (lambda: join.chunk(X, 0), "0 parts"),
        (lambda: join.unbind(X, 3), "axis 3"),
    ],
)
def test_bad_input(call, words):
    with pytest.raises(ArgumentError, match=words):
        call()
