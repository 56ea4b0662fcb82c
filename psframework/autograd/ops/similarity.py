"""Cosine similarity, and losses that compare two inputs."""

from __future__ import annotations

from collections.abc import Sequence

from psframework import backend
from psframework.autograd.ops.loss import check_reduction, constant_array, loss_node
from psframework.autograd.ops.reduce import normal_axis
from psframework.autograd.record import as_tensor, constant, guarded, record, recording, sum_to
from psframework.autograd.tensor import Tensor
from psframework.backend import Array
from psframework.errors import ArgumentError


@guarded("cosine_similarity")
def cosine_similarity(x1: Tensor | Array, x2: Tensor | Array, axis: int = 1, eps: float = 1e-8) -> Tensor:
    """Cosine of the angle between vectors along `axis`.

    Args:
        x1: any shape, floating.
        x2: a shape that broadcasts with it.
        axis: of the vectors, in the broadcast shape; it is gone from the result.
        eps: smallest length that a vector is divided by.
    """
    x1, x2 = as_tensor(x1, "cosine_similarity"), as_tensor(x2, "cosine_similarity")
    a, b = backend.widen(x1._data), backend.widen(x2._data)
    xp = backend.xp(a)
    for tensor in (x1, x2):
        if not backend.is_floating(tensor.dtype):
            raise ArgumentError(
                f"cosine_similarity: dtype {tensor.dtype} is not floating: convert with .astype(np.float32)"
            )
    dtype = xp.result_type(x1.dtype, x2.dtype)
    a, b = xp.broadcast_arrays(a, b)
    normal_axis("cosine_similarity", a.ndim, axis)
    lengths = [xp.sqrt(xp.add.reduce(v * v, axis, keepdims=True)) for v in (a, b)]
    limited = [xp.maximum(length, eps) for length in lengths]
    u, v = a / limited[0], b / limited[1]
    cosine = xp.add.reduce(u * v, axis, keepdims=True)
    out = backend.as_array(xp.squeeze(cosine, axis)).astype(dtype, copy=False)
    if not recording(x1, x2):
        return constant(out)
    kinds = [(x.shape, x.dtype) for x in (x1, x2)]
    needs = [x._requires_grad for x in (x1, x2)]

    def rule(gradient: Array) -> Sequence[Array | None]:
        g = xp.expand_dims(backend.widen(gradient), axis)
        found: list[Array | None] = []
        for own, other, length, limit, kind, needed in zip((u, v), (v, u), lengths, limited, kinds, needs):
            # A vector shorter than eps is divided by a constant.
            turned = other - xp.where(length > eps, cosine, 0) * own
            found.append(sum_to(g * turned / limit, *kind) if needed else None)
        return found

    return record("cosine_similarity", out, rule, (x1, x2), saves_output=True)  # `out` may view `cosine`


def cosine_embedding_loss(
    input1: Tensor | Array,
    input2: Tensor | Array,
    target: Tensor | Array,
    margin: float = 0.0,
    *,
    reduction: str = "mean",
) -> Tensor:
    """1 - cosine for pairs that belong together, max(0, cosine - margin) for those that do not.

    Args:
        input1: (batch, size) or (size,).
        input2: the same shape.
        target: (batch,) or (), 1 for a pair that belongs together, -1 for one that does not.
        margin: in [-1, 1].
        reduction: "mean", "sum" or "none".
    """
    name = "cosine_embedding_loss"
    check_reduction(name, reduction)
    cosine = cosine_similarity(input1, input2, axis=-1)
    c = backend.widen(cosine._data)
    signs = _signs(name, target, c)
    together = signs > 0
    xp = backend.xp(c)
    losses = xp.where(together, 1 - c, xp.maximum(c - margin, 0))
    slope = xp.where(together, -1, c > margin).astype(c.dtype)
    return loss_node(name, backend.as_array(losses), (cosine,), lambda g: (g * slope,), reduction)


@guarded("margin_ranking_loss")
def margin_ranking_loss(
    input1: Tensor | Array,
    input2: Tensor | Array,
    target: Tensor | Array,
    margin: float = 0.0,
    *,
    reduction: str = "mean",
) -> Tensor:
    """max(0, margin - target * (input1 - input2)): which of two scores should be the larger.

    Args:
        input1: any shape, floating.
        input2: the same shape.
        target: the same shape, 1 where `input1` should be larger, -1 where `input2` should.
        margin: by how much.
        reduction: "mean", "sum" or "none".
    """
    name = "margin_ranking_loss"
    check_reduction(name, reduction)
    input1, input2 = as_tensor(input1, name), as_tensor(input2, name)
    if input1.shape != input2.shape:
        raise ArgumentError(f"{name}: inputs {input1.shape} and {input2.shape} differ in shape: reshape one")
    difference = backend.as_array(backend.widen(input1._data) - backend.widen(input2._data))
    signs = _signs(name, target, difference)
    slack = margin - signs * difference
    xp = backend.xp(difference)
    slope = signs * (slack > 0)
    needs = input1._requires_grad, input2._requires_grad

    def derivatives(gradient: Array) -> tuple[Array | None, Array | None]:
        return gradient * -slope if needs[0] else None, gradient * slope if needs[1] else None

    losses = backend.as_array(xp.maximum(slack, 0))
    return loss_node(name, losses, (input1, input2), derivatives, reduction)


def _signs(name: str, target: Tensor | Array, like: Array) -> Array:
    signs = constant_array(name, "target", target, like.dtype)
    if signs is None or signs.shape != like.shape:
        shape = None if signs is None else signs.shape
        raise ArgumentError(f"{name}: target must be 1 or -1 for each of {like.shape}, got shape {shape}")
    return signs
