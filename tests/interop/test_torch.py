"""Training a torch module by our loop and optimizers gives what torch's own gives."""

import collections
import copy
import dataclasses
import gc
import weakref

import numpy as np
import pytest

import psframework.nn.functional as F
from psframework import backend, nn, optim
from psframework.autograd import SparseRows, Tensor, backward, no_grad, recompute, tensor
from psframework.errors import ArgumentError, AutogradError
from psframework.testing.strict_device import strict_devices

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


@pytest.mark.parametrize("odd", [">f4", "field", "broadcast", "0-d", "empty"])
def test_arrays_that_torch_cannot_have(odd):
    fields = np.ones(3, [("a", "u1"), ("f", "f4")])
    array = {
        ">f4": np.arange(3, dtype=">f4"),
        "field": fields["f"],
        "broadcast": np.broadcast_to(np.float32(2), (3, 2)),
        "0-d": np.array(3.0, np.float32),
        "empty": np.zeros((0, 3), np.float32),
    }[odd]
    np.testing.assert_array_equal(to_torch(array).numpy(), array)
    module = TorchModule(torch.nn.Tanh())
    np.testing.assert_allclose(module(array).data, np.tanh(array), rtol=1e-5)


class _Tied(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(4, affine=False)
        self.first, self.second = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
        self.second.weight = self.first.weight
        self.again = self.first

    def forward(self, x):
        return self.again(self.second(self.first(self.norm(x))))


def test_a_scripted_module():
    scripted = TorchModule(torch.jit.script(network()))
    (scripted(X) ** 2).sum().backward()
    assert scripted.get_parameter("3.weight").grad is not None
    assert scripted.get_buffer("1.running_mean").any()


def test_what_torch_shares_is_shared():
    torch.manual_seed(0)
    theirs, ours = _Tied(), TorchModule(twin := _Tied())
    twin.load_state_dict(theirs.state_dict())
    # the order of torch's, though the first module has no parameters
    assert list(ours.state_dict()) == list(theirs.state_dict())
    assert len(list(ours.parameters())) == len(list(theirs.parameters())) == 3
    theirs(torch.from_numpy(X)).square().sum().backward()
    (ours(X) ** 2).sum().backward()
    for name, parameter in theirs.named_parameters():
        np.testing.assert_allclose(ours.get_parameter(name).grad, parameter.grad, rtol=1e-4, atol=1e-5)
    ours.to(np.float64)
    assert ours(X.astype(np.float64)).dtype == np.float64
    assert twin.second.weight is twin.again.weight and twin.second.weight.dtype == torch.float64
    ours.load_state_dict(theirs.state_dict() | {"norm.running_var": np.ones(4)})


def test_frozen_and_thawed_later():
    module = TorchModule(theirs := torch.nn.Linear(4, 2))
    theirs.weight.requires_grad_(False)  # ours decides
    module(X).sum().backward()
    weight = module.get_parameter("weight")
    assert weight.grad is not None
    module.requires_grad_(False)
    assert not module(X).requires_grad
    x = tensor(X, True)
    module(x).sum().backward()
    assert x.grad is not None and not theirs.weight.requires_grad
    weight.grad, weight.requires_grad = None, True
    module(X).sum().backward()
    np.testing.assert_allclose(weight.grad, [X.sum(0)] * 2, rtol=1e-5)


def test_the_mode_begins_as_torchs():
    module = TorchModule(torch.nn.Dropout(0.5).eval())
    assert not module.training
    np.testing.assert_array_equal(module(X).data, X)


def test_modules_in_place():
    module = TorchModule(torch.nn.Sequential(torch.nn.ReLU(inplace=True), torch.nn.Linear(4, 1, bias=False)))
    kept = X.copy()
    x = tensor(X, True)
    (module(x * 2) + module(kept)).sum().backward()
    np.testing.assert_array_equal(kept, X)
    np.testing.assert_allclose(x.grad, 2 * (X > 0) * module.get_parameter("1.weight").data, rtol=1e-6)


def test_a_result_that_is_changed_in_place():
    x = tensor(X, True)
    out = TorchModule(torch.nn.Tanh())(x)
    out *= 2
    with pytest.raises(AutogradError, match="'Tanh' needs was changed in place"):
        out.sum().backward()


class _Memory(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(4))
        self.register_buffer("count", torch.zeros(4), persistent=False)
        self.weight = torch.nn.Parameter(torch.ones(4))

    def forward(self, x):
        self.mean = self.mean + x.mean(0)  # a new tensor
        self.count += 1
        return x[1:], self.count, self.weight[1:], self.mean, self.weight * 2, (y := x + 1), y.T


def test_results_have_memory_of_their_own():
    module = TorchModule(_Memory())
    outs = module(X)
    before = [out.data.copy() for out in outs]
    module(X)
    module.get_parameter("weight").data[...] = 9
    outs[5].data[...] = 8
    for i, (out, then) in enumerate(zip(outs, before)):
        assert i == 5 or np.array_equal(out.data, then), i
        assert not np.shares_memory(out.data, X), i


def test_buffers_that_torch_replaces():
    module = TorchModule(theirs := _Memory())
    for steps in (1, 2):
        module(tensor(X, True))
        np.testing.assert_allclose(module.state_dict()["mean"], steps * X.mean(0), rtol=1e-5)
    assert list(module.state_dict()) == list(theirs.state_dict()) == ["weight", "mean"]
    module.load_state_dict({"mean": np.full(4, 5), "weight": np.ones(4)})
    np.testing.assert_allclose(module(X)[3].data, 5 + X.mean(0), rtol=1e-5)


def test_a_deep_copy_has_its_own_torch_module():
    module = TorchModule(network())
    module(X)
    kept = module.state_dict()
    twin = copy.deepcopy(module)
    twin(X)
    twin.get_parameter("3.bias").data[...] = 5
    twin(X)
    for name, value in twin._torch.state_dict().items():
        np.testing.assert_array_equal(twin.state_dict()[name], value.numpy(), err_msg=name)
        np.testing.assert_array_equal(module.state_dict()[name], kept[name], err_msg=name)
        np.testing.assert_array_equal(module._torch.state_dict()[name].numpy(), kept[name], err_msg=name)
    assert twin.state_dict()["1.num_batches_tracked"] == 3


_PARAMETRIZED = [torch.nn.utils.parametrizations.spectral_norm, torch.nn.utils.parametrizations.weight_norm]


@pytest.mark.parametrize("wrap", _PARAMETRIZED, ids=["spectral", "weight"])
def test_parametrizations(wrap):
    torch.manual_seed(0)
    theirs = wrap(torch.nn.Linear(4, 4))
    ours = TorchModule(copy.deepcopy(theirs))
    for _ in range(2):
        theirs(torch.from_numpy(X)).sum().backward()
        ours(X).sum().backward()
    assert list(ours.state_dict()) == list(theirs.state_dict())
    for name, parameter in theirs.named_parameters():
        np.testing.assert_allclose(ours.get_parameter(name).grad, parameter.grad, rtol=1e-4, atol=1e-5)
    for name, buffer in theirs.named_buffers():
        np.testing.assert_allclose(ours.get_buffer(name), buffer, rtol=1e-4, err_msg=name)


@dataclasses.dataclass
class _Output:
    logits: object
    loss: object = None


class _Answers(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = torch.nn.LSTM(4, 3, batch_first=True)

    def forward(self, x, *, lengths=(), options):
        packed = torch.nn.utils.rnn.pack_padded_sequence(x[None], lengths, batch_first=True)
        hidden, _ = self.lstm(packed)
        named = collections.OrderedDict(z=torch.fft.fft(x).conj().imag)
        return _Output(x * options["scale"]), hidden, torch.max(x, dim=1), named, None, x.shape


def test_results_of_all_kinds():
    x, scale = tensor(X, True), tensor(X[0], True)
    module = TorchModule(_Answers())
    output, hidden, best, named, nothing, shape = module(x, lengths=[6], options={"scale": scale})
    assert isinstance(output, _Output) and output.loss is None and nothing is None
    assert isinstance(hidden, torch.nn.utils.rnn.PackedSequence) and isinstance(hidden.data, Tensor)
    assert isinstance(best, torch.return_types.max) and best.indices.dtype == np.int64
    assert type(named) is collections.OrderedDict and shape == torch.Size([6, 4])
    np.testing.assert_allclose(named["z"].data, -np.fft.fft(X).imag, atol=1e-5)
    (output.logits.sum() + hidden.data.sum() * 0 + best.values.sum()).backward()
    np.testing.assert_allclose(scale.grad, X.sum(0), rtol=1e-5)
    np.testing.assert_allclose(x.grad, X[0] + (X.max(1, keepdims=True) == X), rtol=1e-5)


def test_arrays_of_a_device_are_found_wherever_they_are():
    with strict_devices("torch-0") as (device,):
        there = device.to_device(np.ones(4, np.float32))
        for scale in (there, tensor(np.ones(4, np.float32), device="torch-0")):
            with pytest.raises(TypeError, match="torch-0 can't be lent"):  # a real one can
                TorchModule(_Answers())(X, lengths=[6], options={"scale": scale})


def test_sparse_gradients():
    module = TorchModule(torch.nn.Embedding(10, 3, sparse=True))
    module(np.array([4, 1, 4])).sum().backward()
    gradient = module.get_parameter("weight").grad
    assert isinstance(gradient, SparseRows) and gradient.rows.tolist() == [1, 4]
    np.testing.assert_array_equal(gradient.values, [[1] * 3, [2] * 3])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_another_dtype(dtype):
    kind = backend.dtype_from_name(dtype)
    module = TorchModule(network()).to(kind)
    x = tensor(X, True, dtype=kind)
    recompute(module, x).sum().backward()
    assert x.grad.dtype == module.get_parameter("0.weight").grad.dtype == kind
    assert module.state_dict()["1.num_batches_tracked"].dtype == np.int64
    assert module._torch[1].running_mean.dtype == getattr(torch, dtype)


def test_names_and_lazy_parameters_are_refused():
    class Clash(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self._torch = torch.nn.Linear(1, 1)

    with pytest.raises(ArgumentError, match=r"'_torch.weight' cannot name a parameter.*taken"):
        TorchModule(Clash())
    with pytest.raises(ArgumentError, match="'weight' has no shape yet: run"):
        TorchModule(torch.nn.LazyLinear(3))
