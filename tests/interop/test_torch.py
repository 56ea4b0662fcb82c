"""Training a torch module by our loop and optimizers gives what torch's own gives."""

import gc
import weakref

import numpy as np
import pytest

import psframework.nn.functional as F
from psframework import backend, nn, optim
from psframework.autograd import Tensor, backward, no_grad, tensor
from psframework.errors import ArgumentError, AutogradError

torch = pytest.importorskip("torch")
from psframework.interop.torch import TorchModule, from_torch, to_torch  # noqa: E402

pytestmark = pytest.mark.oracle
rng = np.random.default_rng(0)


def network():
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(4, 8, bias=False), torch.nn.BatchNorm1d(8), torch.nn.ReLU(), torch.nn.Linear(8, 3)
    )


X, Y = rng.standard_normal((6, 4)).astype(np.float32), np.array([0, 1, 2, 0, 1, 2])


def test_training_equals_torchs():
    theirs, ours = network(), TorchModule(network())
    torch_optimizer = torch.optim.Adam(theirs.parameters(), lr=0.05)
    optimizer = optim.Adam(ours.parameters(), lr=0.05)
    for _ in range(10):
        expected = torch.nn.functional.cross_entropy(theirs(torch.from_numpy(X)), torch.from_numpy(Y))
        torch_optimizer.zero_grad()
        expected.backward()
        torch_optimizer.step()
        loss = F.cross_entropy(ours(X), Y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        np.testing.assert_allclose(loss.item(), expected.item(), rtol=1e-4)
    for name, value in theirs.state_dict().items():
        np.testing.assert_allclose(ours.state_dict()[name], value.numpy(), rtol=1e-3, atol=1e-4, err_msg=name)


def test_parameters_and_buffers_are_views_under_torchs_names():
    theirs = network()
    ours = TorchModule(theirs)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    parameters = dict(ours.named_parameters())
    parameters["0.weight"].data[0, 0] = 42
    assert theirs[0].weight[0, 0].item() == 42
    ours(X)
    buffers = dict(ours.named_buffers())
    np.testing.assert_array_equal(buffers["1.running_mean"], theirs[1].running_mean.numpy())
    assert buffers["1.running_mean"].any()
    assert theirs[1].num_batches_tracked.item() == 1
    ours.load_state_dict({name: np.zeros_like(a) for name, a in ours.state_dict().items()})
    assert not theirs[3].weight.any()


def test_a_new_array_reaches_torch():
    """A parameter server keeps parameters in memory of its own."""
    theirs = network()
    ours = TorchModule(theirs).eval()
    arena = np.zeros(12, np.float32)[2:10]
    dict(ours.named_parameters())["1.bias"].data = arena
    arena[...] = 7
    ours(X)
    assert theirs[1].bias.tolist() == [7] * 8
    arena[...] = 9  # and stays a view
    assert theirs[1].bias.tolist() == [9] * 8
    fixed = np.ones(8, np.float32)
    fixed.flags.writeable = False
    dict(ours.named_parameters())["1.bias"].data = fixed
    ours(X)
    dict(ours.named_parameters())["1.bias"].data[0] = 5
    assert theirs[1].bias.tolist() == [5] + [1] * 7


def test_inputs_get_gradients_and_both_graphs_join():
    module = TorchModule(torch.nn.Tanh())
    x = tensor(rng.standard_normal(5), True)
    (module(x * 2) ** 2).sum().backward()
    t = np.tanh(2 * x.data)
    np.testing.assert_allclose(x.grad, 2 * t * (1 - t * t) * 2)


class _Several(torch.nn.Module):
    def forward(self, x, extra, *, scale):
        return {"double": x * 2, "pair": (x + extra[0], extra[1]), "ids": x.argmax(), "scale": scale}


def test_nested_arguments_and_results():
    x, y = tensor(rng.standard_normal(3), True), tensor(rng.standard_normal(3), True)
    out = TorchModule(_Several())(x, [y, "kept"], scale=3)
    assert out["scale"] == 3 and out["pair"][1] == "kept" and not out["ids"].requires_grad
    out["double"].sum().backward(retain_graph=True)
    np.testing.assert_array_equal(x.grad, [2, 2, 2])
    assert y.grad is None
    (out["pair"][0] + out["double"]).sum().backward()
    np.testing.assert_array_equal(x.grad, [5, 5, 5])
    np.testing.assert_array_equal(y.grad, [1, 1, 1])


def test_the_graph_is_freed_and_misuse_is_told():
    module = TorchModule(torch.nn.Linear(4, 2))
    out = module(X)
    kept = weakref.ref(out)
    (gradients,) = [backward([out], [np.ones((6, 2), np.float32)])]
    assert len(gradients) == 2
    with pytest.raises(AutogradError, match=r"Linear.*freed"):
        out.backward(np.ones((6, 2), np.float32))
    del out
    gc.collect()
    assert kept() is None
    with no_grad():
        assert not module(X).requires_grad
    stale = module(X).sum()
    dict(module.named_parameters())["weight"].bump_version()
    with pytest.raises(AutogradError, match="changed in place"):
        stale.backward()
    with pytest.raises(ArgumentError, match=r"takes a torch.nn.Module, not Linear"):
        TorchModule(nn.Linear(1, 1))


def test_modes_and_frozen_parameters():
    theirs = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Dropout(0.9))
    theirs[0].weight.requires_grad_(False)
    module = TorchModule(theirs)
    assert [p.requires_grad for p in module.parameters()] == [False, True]
    module.eval()
    x = np.ones((1, 2), np.float32)
    np.testing.assert_array_equal(module(x).data, module(x).data)
    assert not theirs[1].training
    module.train()
    module(x)
    assert theirs[1].training


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int64", "bool", "bfloat16"])
def test_arrays_share_memory_both_ways(dtype):
    array = np.zeros((2, 3), backend.dtype_from_name(dtype))
    made = to_torch(array)
    assert str(made.dtype) == f"torch.{dtype}"
    array[0, 1] = 1
    assert bool(made[0, 1])
    back = from_torch(made)
    assert back.dtype == array.dtype and np.shares_memory(back, array)


def test_reversed_and_read_only_inputs_are_copied():
    module = TorchModule(torch.nn.Identity())
    x = np.arange(4.0)[::-1]
    x.flags.writeable = False
    np.testing.assert_array_equal(module(x).data, x)
    own = tensor(np.ones(2), True)
    assert not np.shares_memory(module(own).data, own.data)
    assert isinstance(module(Tensor(np.ones(2))), Tensor)
