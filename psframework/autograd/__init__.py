"""Define-by-run differentiation: Tensor, the backward engine, and the operations."""

from psframework.autograd.engine import backward, grad
from psframework.autograd.grad_mode import enable_grad, is_grad_enabled, no_grad
from psframework.autograd.tensor import Tensor, tensor

__all__ = ["Tensor", "backward", "enable_grad", "grad", "is_grad_enabled", "no_grad", "tensor"]
