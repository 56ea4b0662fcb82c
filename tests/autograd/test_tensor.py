import numpy as np
import pytest

from psframework.autograd import Tensor, tensor
from psframework.errors import ArgumentError


def test_hash_is_identity():
    a, b = tensor([1.0]), tensor([1.0])
    assert len({a, b, a}) == 2 and {a: 1}[a] == 1


def test_detach_shares_memory_without_a_graph():
    t = tensor([1.0, 2.0], True)
    d = (t * 2).detach()
    assert not d.requires_grad and d.is_leaf
    same = t.detach()
    same += 1
    assert t.data is same.data and t.version == 1


def test_methods_of_arrays():
    t = tensor([[1.0, -2.0], [3.0, 4.0]], True)
    for value, expected in (
        (t.maximum(0), np.maximum(t.data, 0)),
        (t.minimum(0), np.minimum(t.data, 0)),
        (t.clip(0, 3), t.data.clip(0, 3)),
        (t.argmax(axis=1), t.data.argmax(axis=1)),
        (t.mean(axis=0, keepdims=True), t.data.mean(axis=0, keepdims=True)),
        (t.std(), t.data.std()),
        (t.abs().log(), np.log(np.abs(t.data))),
        (t.relu(), np.maximum(t.data, 0)),
        (t.swapaxes(0, 1), t.data.T),
        (t.flatten().squeeze(), t.data.reshape(-1)),
    ):
        assert isinstance(value, Tensor)
        np.testing.assert_array_equal(value.data, expected)


METHODS = {
    "exp": np.exp, "expm1": np.expm1, "log1p": np.log1p, "sin": np.sin, "cos": np.cos, "square": np.square,
    "prod": np.prod, "all": np.all, "any": np.any, "argmin": np.argmin, "cumsum": np.cumsum,
    "cumprod": np.cumprod, "sort": np.sort, "argsort": np.argsort, "norm": np.linalg.norm, "flip": np.flip,
}  # fmt: skip


@pytest.mark.parametrize("name", METHODS)
def test_methods_named_after_functions(name):
    t = tensor([[0.5, -0.25], [0.75, 4.0]], True)
    np.testing.assert_allclose(getattr(t, name)().data, METHODS[name](t.data))


def test_methods_with_arguments():
    t = tensor([[1.0, -2.0, 5.0], [3.0, 4.0, 0.0]], True)
    x = t.data
    for value, expected in (
        (t.sum(1, keepdims=True), x.sum(1, keepdims=True)),
        (t.cumsum(1), np.cumsum(x, 1)),
        (t.sort(0), np.sort(x, 0)),
        (t.sort(descending=True), -np.sort(-x)),
        (t.norm(1, axis=0), np.abs(x).sum(0)),
        (t.logsumexp(1), np.log(np.exp(x).sum(1))),
        (t.topk(2).values, -np.sort(-x)[:, :2]),
        (t.topk(1, axis=0, largest=False).indices, x.argmin(0)[None]),
        (t.argmin(1, keepdims=True), x.argmin(1, keepdims=True)),
        (t.moveaxis(0, 1), x.T),
        (t.permute(1, 0), x.T),
        (t.split(3, axis=1)[1], x[:, 1:2]),
        (t.roll(1, 1), np.roll(x, 1, 1)),
        (t.repeat(2, 0), np.repeat(x, 2, 0)),
        (t.masked_fill(t > 3, 0.0), np.where(x > 3, 0, x)),
        (t.gather(1, np.array([[0], [2]])), [[1], [0]]),
        (t // 2, x // 2),
        (7 // (t + 3), 7 // (x + 3)),
        (t % 2, x % 2),
        (7 % (t + 3), 7 % (x + 3)),
    ):
        assert isinstance(value, Tensor)
        np.testing.assert_allclose(value.data, expected)


def test_a_method_refuses_what_its_operation_does():
    with pytest.raises(ArgumentError, match="cumsum: axis 3"):
        tensor([1.0]).cumsum(3)


def test_numpys_integers_are_numbers():
    t = tensor(np.ones((2, 1)))
    assert t.transpose(np.int64(1), np.int64(0)).shape == (1, 2)
    assert t.expand(np.int64(2), np.int64(3)).shape == (2, 3)
    assert t[0].expand(np.int64(3)).shape == (3,)
    assert (+t).tolist() == t.tolist()
