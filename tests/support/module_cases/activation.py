"""Activations; the numbers keep their distance from the kinks."""

import numpy as np
from module_case import ModuleCase

from psframework import nn

X = np.array([[-4.3, -2.2, -0.4, 0.9], [0.6, 1.7, 7.1, -0.7]])
PLAIN = (
    "ReLU", "GELU", "Tanh", "Sigmoid", "SiLU", "Mish", "LogSigmoid", "Softsign", "SELU", "ReLU6",
    "Hardsigmoid", "Hardswish", "LeakyReLU", "ELU", "CELU", "Softplus", "Hardtanh", "Softmax", "LogSoftmax",
    "GLU",
)  # fmt: skip


def case(name, special, *args):
    return ModuleCase(f"{name}: {special}", lambda dtype: getattr(nn, name)(*args), [X])


CASES = [
    *(ModuleCase(name, lambda dtype, name=name: getattr(nn, name)(), [X]) for name in PLAIN),
    case("GELU", "tanh", "tanh"),
    case("LeakyReLU", "steep", 0.3),
    case("ELU", "alpha", 0.5),
    case("CELU", "alpha", 2.0),
    case("Softplus", "sharp", 2.0, 5.0),
    case("Hardtanh", "limits", -3.0, 2.0),
    case("Softmax", "first axis", 0),
    case("LogSoftmax", "first axis", 0),
    case("GLU", "first axis", 0),
    ModuleCase("PReLU", lambda dtype: nn.PReLU(dtype=dtype), [X]),
    ModuleCase("PReLU: channels", lambda dtype: nn.PReLU(4, 0.1, dtype=dtype), [X]),
]
