"""Models of torch and JAX on a parameter server learn what they learn in their own frameworks."""

from collections.abc import AsyncIterator

import numpy as np
import pytest

import psframework.nn.functional as F
from psframework import optim
from psframework.cluster.connect import connect
from psframework.cluster.handle import Cluster
from psframework.cluster.local import LocalCluster, local_cluster
from psframework.parameter_server.policy import BSP

STEPS = 12
rng = np.random.default_rng(0)
X = rng.standard_normal((STEPS, 16, 4)).astype(np.float32)
Y = rng.integers(0, 3, (STEPS, 16))


@pytest.fixture(scope="module")
async def local() -> AsyncIterator[LocalCluster]:
    async with local_cluster(parameter_servers=2) as local:
        yield local


@pytest.fixture
async def cluster(local: LocalCluster) -> AsyncIterator[Cluster]:
    async with connect(local.address) as cluster:
        yield cluster


@pytest.mark.oracle
async def test_models_train_on_a_parameter_server_as_in_their_frameworks(cluster):
    torch = pytest.importorskip("torch")
    from psframework.interop.torch import TorchModule

    def network():
        torch.manual_seed(0)
        layers = torch.nn
        return layers.Sequential(
            layers.ReLU(inplace=True),
            layers.Linear(4, 8, bias=False),
            layers.BatchNorm1d(8),
            layers.Tanh(),
            layers.Linear(8, 3),
        )

    theirs, ours = network(), TorchModule(network())
    reference = torch.optim.Adam(theirs.parameters(), lr=0.02)
    expected = []
    for x, y in zip(X, Y):
        loss = torch.nn.functional.cross_entropy(theirs(torch.tensor(x)), torch.from_numpy(y))
        reference.zero_grad()
        loss.backward()
        reference.step()
        expected.append(loss.item())
    async with await cluster.parameter_server(ours, "torch", optim.Adam(lr=0.02), BSP()) as ps:
        losses = await _train(ours, ps)
        np.testing.assert_allclose(losses, expected, rtol=1e-4)
        for name, value in theirs.state_dict().items():
            np.testing.assert_allclose(ours.state_dict()[name], value, rtol=1e-3, atol=1e-4, err_msg=name)
    ours.eval()
    theirs.eval()
    np.testing.assert_allclose(ours(X[0]).data, theirs(torch.tensor(X[0])).detach(), rtol=1e-3, atol=1e-4)


async def test_a_function_of_jax_trains_on_a_parameter_server(cluster):
    jax = pytest.importorskip("jax")
    from psframework.interop.jax import JaxModule

    def logits(params, x):
        return jax.numpy.tanh(x @ params["w"] + params["b"]) @ params["out"]

    def loss(params, x, y):
        return -jax.nn.log_softmax(logits(params, x))[np.arange(16), y].mean()

    start = {"w": rng.standard_normal((4, 8)), "b": np.zeros(8), "out": rng.standard_normal((8, 3))}
    params = {name: value.astype(np.float32) for name, value in start.items()}
    ours = JaxModule(logits, params)
    expected = []
    for x, y in zip(X, Y):
        value, gradients = jax.value_and_grad(loss)(params, x, y.astype(np.int32))
        params = {name: params[name] - 0.1 * gradients[name] for name in params}
        expected.append(float(value))
    async with await cluster.parameter_server(ours, "jax", optim.SGD(lr=0.1), BSP()) as ps:
        np.testing.assert_allclose(await _train(ours, ps), expected, rtol=1e-4)
        for name, value in params.items():
            np.testing.assert_allclose(ours.state_dict()[name], value, rtol=1e-3, atol=1e-4)


async def _train(model, ps) -> list[float]:
    losses = []
    for x, y in zip(X, Y):
        loss = F.cross_entropy(model(x.copy()), y)
        loss.backward()
        losses.append(loss.item())
        await ps.push_pull()
    return losses
