"""Activations; the numbers keep their distance from the kinks at 0, 1, 3 and 6."""

import numpy as np
from op_case import Case

from psframework import ops

X = np.array([[-4.3, -2.2, -0.4], [0.6, 1.7, 7.1]])
NAMES = (
    "relu", "tanh", "sigmoid", "gelu", "silu", "mish", "logsigmoid", "hardsigmoid", "hardswish", "softsign",
    "leaky_relu", "elu", "selu", "celu", "softplus", "hardtanh", "relu6",
)  # fmt: skip

CASES = [
    *(Case(name, getattr(ops, name), [X]) for name in NAMES),
    *(Case(f"{name}: no axes", getattr(ops, name), [np.array(-0.4)]) for name in NAMES),
    *(Case(f"{name}: empty", getattr(ops, name), [X[:0]]) for name in NAMES),
    Case("gelu: tanh", lambda x: ops.gelu(x, "tanh"), [X]),
    Case("leaky_relu: steep", lambda x: ops.leaky_relu(x, 0.3), [X]),
    Case("elu: alpha", lambda x: ops.elu(x, 0.5), [X]),
    Case("celu: alpha", lambda x: ops.celu(x, 2.0), [X]),
    Case("softplus: sharp", lambda x: ops.softplus(x, 2.0, 5.0), [X]),
    Case("hardtanh: limits", lambda x: ops.hardtanh(x, -3, 2), [X]),
    Case("prelu", ops.prelu, [X, np.array([0.25])]),
    Case("prelu: channels", ops.prelu, [X, np.array([0.25, -0.5, 0.1])]),
    Case("prelu: images", ops.prelu, [X.reshape(1, 2, 3), np.array([0.25, 2.0])]),
    Case("glu", ops.glu, [X[:, [0, 2, 1, 2]]]),
    Case("glu: first axis", lambda x: ops.glu(x, 0), [X]),
]
