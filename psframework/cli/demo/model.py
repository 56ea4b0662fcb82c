"""The demo's network, small enough for two cores and big enough to need a parameter server's partitions."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from psframework import nn
from psframework.autograd import no_grad, tensor
from psframework.backend import asnumpy
from psframework.nn.init import manual_seed
from psframework.nn.module import Module


def digits_network(seed: int = 0) -> Module:
    """Two convolutions and two linear layers for images of (1, 8, 8); the same values for the same seed."""
    manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.BatchNorm2d(64),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(256, 128),
        nn.ReLU(),
        nn.Dropout(0.3),
        nn.Linear(128, 10),
    )


def model_arrays(model: Module) -> dict[str, npt.NDArray[Any]]:
    """Copies of parameters and buffers by name, as a model file holds them."""
    return {name: asnumpy(array) for name, array in model.state_dict().items()}


def accuracy(model: Module, images: npt.NDArray[Any], labels: npt.NDArray[Any]) -> float:
    """Share of images that the model names rightly, in evaluation mode; the mode it was in is put back."""
    training = model.training
    model.eval()
    try:
        with no_grad():
            scores = asnumpy(model(tensor(images)).data)
    finally:
        model.train(training)
    return float(np.mean(scores.argmax(axis=1) == labels))
