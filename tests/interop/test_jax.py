"""A JAX function trains in our loop as one of our own modules does."""

import numpy as np
import pytest

import psframework.nn.functional as F
from psframework import nn, optim
from psframework.autograd import Tensor, no_grad, tensor
from psframework.errors import ArgumentError, AutogradError

jax = pytest.importorskip("jax")
from psframework.interop.jax import JaxModule  # noqa: E402

rng = np.random.default_rng(0)
X, Y = rng.standard_normal((6, 4)).astype(np.float32), np.array([0, 1, 2, 0, 1, 2])


def mlp(params, x):
    hidden = jax.nn.relu(x @ params["hidden"]["w"] + params["hidden"]["b"])
    return hidden @ params["out"][0]


def parameters():
    return {
        "hidden": {"w": rng.standard_normal((4, 8)).astype(np.float32), "b": np.zeros(8, np.float32)},
        "out": [rng.standard_normal((8, 3)).astype(np.float32)],
    }


class Ours(nn.Module):
    def __init__(self, params):
        self.w, self.b = nn.Parameter(params["hidden"]["w"]), nn.Parameter(params["hidden"]["b"])
        self.out = nn.Parameter(params["out"][0])

    def forward(self, x):
        return F.relu(Tensor(x) @ self.w + self.b) @ self.out


def test_training_equals_our_own():
    params = parameters()
    bridge, ours = JaxModule(mlp, params), Ours(jax.tree_util.tree_map(np.copy, params))
    assert [name for name, _ in bridge.named_parameters()] == ["hidden.b", "hidden.w", "out.0"]
    first, second = optim.SGD(bridge.parameters(), lr=0.1), optim.SGD(ours.parameters(), lr=0.1)
    for _ in range(10):
        losses = []
        for model, optimizer in ((bridge, first), (ours, second)):
            loss = F.cross_entropy(model(X), Y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        np.testing.assert_allclose(*losses, rtol=1e-4)
    np.testing.assert_allclose(bridge.state_dict()["hidden.w"], ours.state_dict()["w"], rtol=1e-3, atol=1e-5)


def test_inputs_get_gradients_and_several_results():
    def several(params, x, ids):
        return {"scaled": x * params, "ids": ids + 1, "sum": (x.sum(), x[ids])}

    module = JaxModule(several, np.float32(3))
    x = tensor(np.arange(4, dtype=np.float32), True)
    out = module(x * 2, np.array([0, 0, 2], np.int32))
    assert not out["ids"].requires_grad and out["ids"].data.tolist() == [1, 1, 3]
    out["scaled"].sum().backward(retain_graph=True)
    np.testing.assert_array_equal(x.grad, [6, 6, 6, 6])
    (parameter,) = module.parameters()
    np.testing.assert_array_equal(parameter.grad, 12)
    out["sum"][1].sum().backward()
    np.testing.assert_array_equal(x.grad, [10, 6, 8, 6])


def test_parameters_are_read_in_place():
    module = JaxModule(lambda w, x: w * x, np.ones(64, np.float32))
    (parameter,) = module.parameters()
    before = module(np.ones(64, np.float32))
    parameter.data[...] = 5
    parameter.bump_version()
    assert module(np.ones(64, np.float32)).data.sum() == 5 * 64
    with pytest.raises(AutogradError, match="changed in place"):
        before.sum().backward()


def test_compiled_once_for_each_shape_and_no_graph_under_no_grad():
    traces = []

    def traced(w, x):
        traces.append(x.shape)
        return w * x

    module = JaxModule(traced, np.ones(2, np.float32))
    for _ in range(3):
        module(np.ones(2, np.float32)).sum().backward()
    assert len(traces) == 1
    with no_grad():
        assert not module(np.ones(2, np.float32)).requires_grad


def test_misuse():
    with pytest.raises(ArgumentError, match="takes a function, not dict"):
        JaxModule({}, {})
    with pytest.raises(ArgumentError, match=r"'a.0' has dtype int64"):
        JaxModule(mlp, {"a": [np.arange(3)]})
    module = JaxModule(lambda w, x: w * x, np.ones(2))
    with pytest.raises(ArgumentError, match=r"float32 instead of float64.*jax_enable_x64"):
        module(np.ones(2))
