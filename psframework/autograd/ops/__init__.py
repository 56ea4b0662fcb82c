"""Operations on tensors, under NumPy's names: `psf.ops.where(x > 0, x, psf.ops.exp(x))`.

Each takes Tensors, and arrays or numbers as constants, and records the graph.
"""

# A function may bear the name of its module (`softmax`): inside the package, import from the modules.
from psframework.autograd.ops.activation import gelu, relu, sigmoid, tanh
from psframework.autograd.ops.arithmetic import (
    add,
    clip,
    divide,
    maximum,
    minimum,
    multiply,
    power,
    subtract,
    where,
)
from psframework.autograd.ops.conv import conv2d
from psframework.autograd.ops.elementwise import absolute, astype, clone, exp, log, negative, sqrt
from psframework.autograd.ops.loss import cross_entropy, mse_loss
from psframework.autograd.ops.matmul import linear, matmul
from psframework.autograd.ops.pool import avg_pool2d, max_pool2d
from psframework.autograd.ops.reduce import argmax, max, mean, min, std, sum, var
from psframework.autograd.ops.shape import (
    concatenate,
    detach,
    expand,
    flatten,
    reshape,
    squeeze,
    stack,
    swapaxes,
    transpose,
    unsqueeze,
)
from psframework.autograd.ops.softmax import log_softmax, softmax

__all__ = [
    "absolute",
    "add",
    "argmax",
    "astype",
    "avg_pool2d",
    "clip",
    "clone",
    "concatenate",
    "conv2d",
    "cross_entropy",
    "detach",
    "divide",
    "exp",
    "expand",
    "flatten",
    "gelu",
    "linear",
    "log",
    "log_softmax",
    "matmul",
    "max",
    "max_pool2d",
    "maximum",
    "mean",
    "min",
    "minimum",
    "mse_loss",
    "multiply",
    "negative",
    "power",
    "relu",
    "reshape",
    "sigmoid",
    "softmax",
    "sqrt",
    "squeeze",
    "stack",
    "std",
    "subtract",
    "sum",
    "swapaxes",
    "tanh",
    "transpose",
    "unsqueeze",
    "var",
    "where",
]
