"""A JAX function trains in our loop as one of our own modules does."""

import copy
import dataclasses
from collections import namedtuple

import numpy as np
import pytest

import psframework.nn.functional as F
from psframework import backend, nn, optim
from psframework.autograd import Tensor, no_grad, tensor
from psframework.errors import ArgumentError, AutogradError

jax = pytest.importorskip("jax")
from psframework.interop.jax import JaxModule, to_jax  # noqa: E402

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
    for clash in ({"a.b": X, "a": {"b": X}}, {"a": X, "a.b": X}, {"_tree": X}, {"forward": X}):
        with pytest.raises(ArgumentError, match="cannot name a parameter"):
            JaxModule(mlp, clash)
    with pytest.raises(ArgumentError, match=r"'a.0' has dtype int64"):
        JaxModule(mlp, {"a": [np.arange(3)]})
    module = JaxModule(lambda w, x: w * x, np.ones(2))
    with pytest.raises(ArgumentError, match=r"float32 instead of float64.*jax_enable_x64"):
        module(np.ones(2))


Layer = namedtuple("Layer", "w b")


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Output:
    hidden: object
    scaled: object


def layered(params, batch, *, scale=1.0):
    hidden = batch["x"] @ params.w.w + params.w.b
    return Output(hidden, None), {"scaled": hidden * scale, "ids": batch["ids"] + 1}


def test_pytrees_go_in_and_come_out():
    params = Layer(Layer(np.ones((4, 2), np.float32), np.zeros(2, np.float32)), None)
    module = JaxModule(layered, params)
    assert [name for name, _ in module.named_parameters()] == ["w.w", "w.b"]
    x = tensor(X, True)
    output, rest = module({"x": x, "ids": np.arange(3), "none": None}, scale=2)
    assert isinstance(output, Output) and output.scaled is None and rest["ids"].tolist() == [1, 2, 3]
    rest["scaled"].sum().backward(retain_graph=True)
    np.testing.assert_array_equal(module.get_parameter("w.b").grad, [12, 12])
    output.hidden.sum().backward()  # of the dataclass alone: seeds are by result
    np.testing.assert_array_equal(module.get_parameter("w.b").grad, [18, 18])
    np.testing.assert_array_equal(x.grad, np.full((6, 4), 6))


def test_keys_numbers_and_jax_arrays_are_inputs():
    def noisy(p, x, key, factor):
        key, used = jax.random.split(key)
        return jax.random.uniform(used, x.shape) * p["s"] * factor + x, key

    module = JaxModule(noisy, {"s": 3.0})
    assert next(module.parameters()).dtype == np.float32
    out, key = module(jax.numpy.asarray(X), jax.random.key(0), 2.0)
    out.sum().backward()
    assert module.get_parameter("s").grad != 0
    again, _ = module(X, key, 2)
    assert np.abs(again.data - out.data).max() > 0.1
    np.testing.assert_allclose(module(X, jax.random.PRNGKey(0), 2)[0].data, out.data, rtol=1e-5)


def test_integers_that_fit_are_taken():
    module = JaxModule(lambda w, i: w[i], np.arange(3, dtype=np.float32))
    module(np.array([0, 2, 2])).sum().backward()
    assert next(module.parameters()).grad.tolist() == [1, 0, 2]
    with pytest.raises(ArgumentError, match=r"int32 instead of int64.*astype\(np.int32\)"):
        module(np.array([2**40]))


def test_arrays_of_all_layouts():
    module = JaxModule(lambda w, x: x * w, np.float32(1))
    kinds = [X[::-1], X.T, X[:, ::2], np.broadcast_to(np.float32(2), (3, 4)), X.astype(">f4")]
    for array in [*kinds, np.zeros((0, 3), np.float32), np.array(2, np.float32)]:
        np.testing.assert_array_equal(module(array).data, array)
        x = tensor(array, True)
        module(x).backward(array.astype(np.float32))
        np.testing.assert_array_equal(x.grad, array)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_sixteen_bits(dtype):
    kind = backend.dtype_from_name(dtype)
    module = JaxModule(mlp, parameters()).to(kind)
    x = tensor(X, True, dtype=kind)
    out = module(x)
    out.sum().backward()
    assert out.dtype == x.grad.dtype == module.get_parameter("out.0").grad.dtype == kind


def aligned(array):
    """A copy where JAX can have the memory itself."""
    memory = np.empty(array.nbytes + 64, np.uint8)
    start = -memory.ctypes.data % 64
    made = memory[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    made[...] = array
    return made


def test_results_have_memory_of_their_own():
    module, x = (
        JaxModule(lambda w, x: (w, x, x.T), np.ones((64, 64), np.float32)),
        aligned(np.ones((64, 64), "f4")),
    )
    (parameter,) = module.parameters()
    parameter.data = aligned(parameter.data)
    assert to_jax(x).unsafe_buffer_pointer() == x.ctypes.data
    outs = module(x)
    with no_grad():
        outs += module(x)
    x[...] = parameter.data[...] = 7
    for out in outs:
        out += 1
        np.testing.assert_array_equal(out.data, 2)


def test_nothing_is_read_after_a_call_has_returned():
    """JAX computes in threads of its own; an optimizer changes the parameters as soon as it has gradients."""
    size = 1000
    start = rng.standard_normal((size, size)).astype(np.float32) / 30
    module = JaxModule(lambda w, x: jax.numpy.tanh(x @ w) @ w.T, start)
    (parameter,) = module.parameters()
    parameter.data = aligned(start)
    batch = rng.standard_normal((64, size)).astype(np.float32)
    seen = []
    for _ in range(4):
        out = module(batch)
        out.sum().backward()
        parameter.data[...] = np.nan
        seen.append((out.data.copy(), parameter.grad))
        parameter.data[...], parameter.grad = start, None
    for out, gradient in seen:
        np.testing.assert_array_equal(out, seen[0][0])
        np.testing.assert_array_equal(gradient, seen[0][1])


def test_a_deep_copy_is_another_model():
    module = JaxModule(mlp, parameters())
    twin = copy.deepcopy(module)
    twin.get_parameter("out.0").data[...] = 5
    assert np.abs(twin(X).data - module(X).data).max() > 1
    twin(X).sum().backward()
    assert module.get_parameter("out.0").grad is None and twin.get_parameter("out.0").grad is not None
