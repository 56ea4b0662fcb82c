"""Define-by-run differentiation: Tensor, the backward engine, and the operations."""

# First: the operations need the class, and it needs them.
from psframework.autograd.tensor import Tensor

# isort: split
from psframework.autograd.anomaly import detect_anomaly
from psframework.autograd.create import tensor
from psframework.autograd.draw import draw
from psframework.autograd.engine import backward, grad
from psframework.autograd.function import Context, Function
from psframework.autograd.grad_mode import enable_grad, is_grad_enabled, no_grad
from psframework.autograd.node import Node
from psframework.autograd.picture import Drawing
from psframework.autograd.random_state import replayable
from psframework.autograd.recompute import is_recomputing, recompute
from psframework.autograd.sparse import SparseRows

__all__ = [
    "Context",
    "Drawing",
    "Function",
    "Node",
    "SparseRows",
    "Tensor",
    "backward",
    "detect_anomaly",
    "draw",
    "enable_grad",
    "grad",
    "is_grad_enabled",
    "is_recomputing",
    "no_grad",
    "recompute",
    "replayable",
    "tensor",
]
