"""A small convolutional network trains as torch's does: same weights in, same weights out."""

import numpy as np
import pytest

import psframework.nn.functional as F
from psframework import nn, optim
from psframework.data import digits


def model(module) -> object:
    """The same network from psframework.nn or torch.nn."""
    return module.Sequential(
        module.Conv2d(1, 4, 3, padding=1),
        module.BatchNorm2d(4),
        module.ReLU(),
        module.MaxPool2d(2),
        module.Conv2d(4, 8, 3),
        module.GELU(),
        module.Flatten(),
        module.Linear(32, 10),
    )


def train(network: nn.Module, x: np.ndarray, y: np.ndarray, steps: int) -> list[float]:
    optimizer = optim.AdamW(network.parameters(), lr=1e-2)
    losses = []
    for _ in range(steps):
        loss = F.cross_entropy(network(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.oracle
def test_five_steps_of_a_convolutional_network_equal_torchs() -> None:
    torch = pytest.importorskip("torch")
    ours, theirs = model(nn), model(torch.nn).double()
    for layer in ours.modules():
        for name, parameter in layer.named_parameters(recurse=False):
            setattr(layer, name, nn.Parameter(parameter.data.astype(np.float64)))
    state = {name: torch.tensor(array) for name, array in ours.state_dict().items()}
    theirs.load_state_dict(state)  # fails if names or shapes differ
    x, y = digits().x_train[:32].astype(np.float64), digits().y_train[:32]

    optimizer = torch.optim.AdamW(theirs.parameters(), lr=1e-2)
    expected = []
    for _ in range(5):
        loss = torch.nn.functional.cross_entropy(theirs(torch.tensor(x)), torch.tensor(y))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        expected.append(loss.item())

    np.testing.assert_allclose(train(ours, x, y, 5), expected, rtol=1e-9)
    trained = {name: value.numpy() for name, value in theirs.state_dict().items()}
    for name, array in ours.state_dict().items():
        np.testing.assert_allclose(array, trained[name], rtol=1e-5, atol=1e-8, err_msg=name)


def test_the_digits_are_learnt() -> None:
    nn.manual_seed(0)
    network = model(nn)
    data = digits()
    losses = train(network, data.x_train[:64], data.y_train[:64], 30)
    assert losses[-1] < 0.1 < 2 < losses[0]
