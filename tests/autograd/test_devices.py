"""Arrays that are not NumPy's: what the catalogue of operations does not cover."""

import numpy as np
import pytest

from psframework import backend, nn, optim
from psframework.autograd import Tensor, backward, no_grad
from psframework.autograd.ops.cross_entropy import cross_entropy
from psframework.autograd.ops.matmul import linear
from psframework.errors import ArgumentError
from psframework.testing.strict_device import strict_devices

rng = np.random.default_rng(12)


def positive(*shape):
    return rng.uniform(0.5, 2, shape)


A, B = positive(3, 4), positive(3, 4)


@pytest.fixture
def device():
    with strict_devices("gpu-0") as (device,):
        yield device


def gradients(op, arrays, seed_like):
    leaves = [Tensor(array, True) for array in arrays]
    out = op(*leaves)
    found = backward([out], [seed_like(out.data)])
    return [out.data, *(found[leaf] for leaf in leaves)]


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_a_layer_so_large_that_its_result_lies_the_other_way(dtype, device):
    hosts = [array.astype(dtype) for array in (positive(2, 100), positive(100, 100), positive(100))]
    expected = gradients(linear, hosts, np.ones_like)
    found = gradients(linear, [device.to_device(host) for host in hosts], device.ones_like)
    for ours, theirs in zip(found, expected):
        assert backend.xp(ours) is device and ours.dtype == theirs.dtype
        np.testing.assert_array_equal(backend.asnumpy(ours), theirs)


def test_what_takes_more_than_tensors(device):
    rows = Tensor(device.to_device(A), True)
    rows[device.to_device(np.array([0, 0, 2]))].sum().backward()
    assert backend.xp(rows.grad) is device
    with no_grad():
        rows *= 2
        rows[0] = 1.0
    assert rows.version == 2


def test_host_arrays_do_not_mix(device):
    t = Tensor(device.to_device(A), True)
    with pytest.raises(ArgumentError, match="add: operands are on gpu-0 and cpu: move one with"):
        t + B


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_a_training_step_never_waits_for_the_device(dtype):
    """On a GPU each wait leaves it idle; the operations that have kernels are those that would."""
    with strict_devices("gpu-0", fused=True) as (device,):
        layers = nn.Linear(4, 6), nn.LayerNorm(6), nn.GELU(), nn.Dropout(0.1), nn.Linear(6, 3)
        model = nn.Sequential(*layers).to(device.device, dtype)
        optimizer = optim.AdamW(model.parameters(), lr=0.1)
        x, labels = Tensor(device.to_device(A.astype(dtype))), device.to_device(np.array([0, 2, 1]))
        before, start = device.synchronisations, model[0].weight.numpy()
        for _ in range(2):
            optimizer.zero_grad()
            cross_entropy(model(x), labels).backward()
            optimizer.step()
        assert device.synchronisations == before + 1  # the copy for `start`
        assert not np.array_equal(model[0].weight.numpy(), start)
