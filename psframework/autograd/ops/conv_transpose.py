"""Transposed convolution: the gradient of a convolution with respect to its input, as an operation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from psframework import backend
from psframework.autograd.ops.conv import Correlation, check, flat, result_type
from psframework.autograd.ops.shape import squeeze, unsqueeze
from psframework.autograd.ops.windows import Sizes, Windows, inside_out, outside_in, sizes
from psframework.autograd.record import as_tensor, constant, guarded, needs_grad, record, recording
from psframework.autograd.tensor import Tensor
from psframework.backend import Array
from psframework.errors import ArgumentError


@guarded("conv_transpose1d")
def conv_transpose1d(
    input: Tensor | Array,
    weight: Tensor | Array,
    bias: Tensor | Array | None = None,
    stride: Sizes = 1,
    padding: Sizes = 0,
    output_padding: Sizes = 0,
    groups: int = 1,
    dilation: Sizes = 1,
) -> Tensor:
    """1-D transposed convolution, as torch's.

    Args:
        input: (batch, in, length) or (in, length), floating.
        weight: (in, out / groups, kernel).
        bias: (out,) or None.
        stride: steps in the result from one window to the next.
        padding: elements of the result left out on each side.
        output_padding: elements added behind the result; less than stride or dilation.
        groups: channels are cut into this many groups that do not see each other.
        dilation: steps from one element of a window to the next.

    Returns:
        (batch, out, length') or (out, length'), where length' is
        `(length - 1) * stride - 2 * padding + dilation * (kernel - 1) + output_padding + 1`.

    Raises:
        ArgumentError: shapes that do not fit together.
    """
    steps = stride, padding, output_padding, dilation
    return _conv_transpose("conv_transpose1d", input, weight, bias, steps, groups)


@guarded("conv_transpose2d")
def conv_transpose2d(
    input: Tensor | Array,
    weight: Tensor | Array,
    bias: Tensor | Array | None = None,
    stride: Sizes = 1,
    padding: Sizes = 0,
    output_padding: Sizes = 0,
    groups: int = 1,
    dilation: Sizes = 1,
) -> Tensor:
    """2-D transposed convolution, as torch's.

    Args:
        input: (batch, in, rows, columns) or (in, rows, columns), floating.
        weight: (in, out / groups, kernel rows, kernel columns).
        bias: (out,) or None.
        stride: one number, or one for rows and one for columns; so are the next two, and dilation.
        padding: elements of the result left out on each side.
        output_padding: elements added behind the result; less than stride or dilation.
        groups: channels are cut into this many groups that do not see each other.
        dilation: steps from one element of a window to the next.

    Returns:
        (batch, out, rows', columns') or (out, rows', columns'), sizes as those of `conv_transpose1d`.

    Raises:
        ArgumentError: shapes that do not fit together.
    """
    steps = stride, padding, output_padding, dilation
    return _conv_transpose("conv_transpose2d", input, weight, bias, steps, groups)


def _conv_transpose(
    name: str,
    input: Tensor | Array,
    weight: Tensor | Array,
    bias: Tensor | Array | None,
    steps: tuple[Sizes, Sizes, Sizes, Sizes],
    groups: int,
) -> Tensor:
    axes = 1 if name.endswith("1d") else 2
    x, weight = as_tensor(input, name), as_tensor(weight, name)
    bias = None if bias is None else as_tensor(bias, name)
    if x.ndim == axes + 1:
        return squeeze(_conv_transpose(name, unsqueeze(x, 0), weight, bias, steps, groups), 0)
    check(name, axes, x, weight)
    _check_channels(name, x.shape, weight.shape, None if bias is None else bias.shape, groups)
    # `plan` is the convolution that this is the transpose of: it goes from our result to our input.
    plan = _plan(name, x.shape[2:], weight.shape[2:], steps, groups)
    values, kernels, batch = flat(backend.widen(x._data)), backend.widen(weight._data), len(x._data)
    out = plan.transposed(kernels, values, batch)
    if bias is not None:
        out += bias._data.astype(out.dtype, copy=False).reshape(-1, *(1,) * (axes + 1))
    out = outside_in(out.astype(result_type(x, weight), copy=False))
    if not recording(x, weight, bias):
        return constant(out)
    rule = _rule(plan, (values, kernels), x, weight, bias)
    return record(name, out, rule, (x, weight, bias), (x, weight))


def _rule(
    plan: Correlation, arrays: tuple[Array, Array], x: Tensor, weight: Tensor, bias: Tensor | None
) -> Any:
    values, kernels = arrays
    shape = (x.shape[1], *x.shape[2:], x.shape[0])
    needs = x._requires_grad, weight._requires_grad, needs_grad(bias)
    kinds = x.dtype, weight.dtype, weight.dtype if bias is None else bias.dtype

    def rule(gradient: Array, wanted: Sequence[bool] = needs) -> Sequence[Array | None]:
        g = backend.widen(gradient)
        into_x = into_weight = into_bias = None
        if wanted[0] or wanted[1]:
            columns = plan.unfold(inside_out(g))
            if wanted[0]:
                into_x = outside_in(plan.products(kernels, columns).reshape(shape))
                into_x = into_x.astype(kinds[0], copy=False)
            if wanted[1]:
                into_weight = plan.kernels(values, columns, kernels.shape).astype(kinds[1], copy=False)
        if wanted[2]:
            axes = (0, *range(2, g.ndim))
            into_bias = backend.xp(g).add.reduce(g, axes).astype(kinds[2], copy=False)
        return into_x, into_weight, into_bias

    return rule


def _plan(
    name: str,
    lengths: tuple[int, ...],
    kernel: tuple[int, ...],
    steps: tuple[Sizes, Sizes, Sizes, Sizes],
    groups: int,
) -> Correlation:
    axes = len(kernel)
    stride, dilation = sizes(name, "stride", steps[0], axes, 1), sizes(name, "dilation", steps[3], axes, 1)
    border = sizes(name, "padding", steps[1], axes, 0)
    more = sizes(name, "output_padding", steps[2], axes, 0)
    if any(m >= max(s, d) for m, s, d in zip(more, stride, dilation)):
        raise ArgumentError(
            f"{name}: output_padding={more} must be less than stride={stride} or dilation={dilation}"
        )
    result = tuple(
        [
            (n - 1) * s - 2 * p + d * (k - 1) + m + 1
            for n, k, s, p, d, m in zip(lengths, kernel, stride, border, dilation, more)
        ]
    )
    if min(result) < 1:
        raise ArgumentError(f"{name}: the result of {lengths} with padding {border} would have size {result}")
    return Correlation(Windows(kernel, stride, border, border, dilation), result, lengths, groups)


def _check_channels(
    name: str, x: tuple[int, ...], weight: tuple[int, ...], bias: tuple[int, ...] | None, groups: int
) -> None:
    if groups < 1 or x[1] != weight[0] or weight[0] % groups:
        raise ArgumentError(
            f"{name}: {x[1]} channels in {groups} group(s) do not fit a weight of shape {weight}: "
            "it needs (channels, out / groups, ...), and channels divisible by groups"
        )
    if bias is not None and bias != (weight[1] * groups,):
        raise ArgumentError(
            f"{name}: weight {weight} in {groups} group(s) needs a bias of shape {(weight[1] * groups,)}, "
            f"got {bias}"
        )
