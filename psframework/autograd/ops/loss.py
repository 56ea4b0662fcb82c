"""What losses share: reductions, constant weights, and one node for a loss of each element."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from psframework import backend
from psframework.autograd.record import as_tensor, constant, record, recording, sum_to
from psframework.autograd.tensor import Tensor
from psframework.backend import Array
from psframework.errors import ArgumentError

REDUCTIONS = ("mean", "sum", "none")

# From the gradient of each element's loss to those of the inputs, in the dtype that is computed in.
Derivatives: TypeAlias = Callable[[Array], Sequence["Array | None"]]


def check_reduction(name: str, reduction: str, allowed: Sequence[str] = REDUCTIONS) -> None:
    """Refuses what is none of the reductions that a loss has."""
    if reduction not in allowed:
        raise ArgumentError(f"{name}: reduction {reduction!r} is none of {', '.join(allowed)}")


def floating_pair(name: str, input: Tensor | Array, target: Tensor | Array) -> tuple[Tensor, Tensor]:
    """Both as floating tensors of one shape; targets of integers or booleans in the input's dtype."""
    input, target = as_tensor(input, name), as_tensor(target, name)
    if not backend.is_floating(input.dtype):
        raise ArgumentError(
            f"{name}: input of dtype {input.dtype} is not floating: convert with .astype(np.float32)"
        )
    if input.shape != target.shape:
        raise ArgumentError(
            f"{name}: input {input.shape} and target {target.shape} differ in shape: a loss that broadcasts "
            "is nearly always a mistake, so reshape one"
        )
    if not backend.is_floating(target.dtype):
        target = constant(target._data.astype(input.dtype))
    return input, target


def constant_array(name: str, what: str, value: Tensor | Array | None, dtype: Any) -> Array | None:
    """An argument that no gradient flows into, in the dtype that is computed in; None stays None."""
    if value is None:
        return None
    tensor = as_tensor(value, f"{name}'s {what}")
    if tensor._requires_grad:
        raise ArgumentError(f"{name}: {what} is a constant and gets no gradient: pass {what}.detach()")
    return tensor._data.astype(dtype, copy=False)


def loss_node(
    name: str,
    losses: Array,
    inputs: Sequence[Tensor],
    derivatives: Derivatives,
    reduction: str,
    *,
    divisor: Any = None,
    saved: Sequence[Tensor] = (),
) -> Tensor:
    """A loss of each element, reduced, as one node.

    Args:
        name: of the loss.
        losses: one for each element, in the dtype that is computed in.
        inputs: what it is differentiated by; the result has their common dtype.
        derivatives: called in backward with a gradient that broadcasts with `losses`.
        reduction: "none" keeps the elements, "sum" adds them, any other divides the sum too.
        divisor: of that sum; the number of elements if None.
        saved: those inputs whose arrays `derivatives` holds.
    """
    scale, out = None, losses
    if reduction != "none":
        out = backend.xp(losses).add.reduce(losses, None)
        if reduction != "sum":
            scale = divisor if divisor is not None else losses.size or float("nan")
            out = out / scale
    out = backend.as_array(out)
    dtype = _common_dtype(inputs)
    if out.dtype != dtype:
        out = out.astype(dtype)
    if not recording(*inputs):
        return constant(out)
    kinds = [(tensor.shape, tensor.dtype) for tensor in inputs]
    computed = losses.dtype

    def rule(gradient: Array) -> Sequence[Array | None]:
        g = gradient if gradient.dtype == computed else gradient.astype(computed)
        found = derivatives(g if scale is None else g / scale)
        return [None if one is None else sum_to(one, *kind) for one, kind in zip(found, kinds)]

    return record(name, out, rule, tuple(inputs), tuple(saved))


def _common_dtype(tensors: Sequence[Tensor]) -> Any:
    dtype = tensors[0].dtype
    for other in tensors[1:]:
        if other.dtype != dtype:
            dtype = backend.xp(other._data).result_type(dtype, other.dtype)
    return dtype
