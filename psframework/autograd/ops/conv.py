"""2-D convolution as one matrix product over unfolded windows.

Inside, images lie as (channel, row, column, image): then unfolding, and folding gradients back, move runs
as long as a row of the whole batch, and the product's result already lies as the next layer wants it. To the
user shapes are (image, channel, row, column); such an array is a transposed view of that memory.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias, cast

from psframework import backend
from psframework.autograd.record import as_tensor, constant, needs_grad, record, recording
from psframework.autograd.tensor import Tensor
from psframework.backend import Array
from psframework.errors import ArgumentError

Pair: TypeAlias = int | tuple[int, int]

# Unfolded windows above this size are made again in the backward instead of being kept.
KEEP_BYTES = 64 << 20


def pair(name: str, what: str, value: Pair, least: int) -> tuple[int, int]:
    """`value` for rows and for columns.

    Raises:
        ArgumentError: it is neither a number nor two, or one is below `least`.
    """
    both = (value, value) if isinstance(value, int) else tuple(value)
    if len(both) != 2 or not all(isinstance(n, int) and n >= least for n in both):
        raise ArgumentError(f"{name}: {what}={value!r} must be an integer of at least {least}, or two")
    return both[0], both[1]


class Windows(NamedTuple):
    """Where the windows of a convolution or a pooling lie.

    Attributes:
        kernel: rows and columns of a window.
        stride: steps from one window to the next.
        padding: zeros on either side.
        dilation: steps from one element of a window to the next.
    """

    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]

    def output(self, name: str, rows: int, columns: int) -> tuple[int, int]:
        """How many windows fit along each axis."""
        counts = [
            (n + 2 * p - d * (k - 1) - 1) // s + 1
            for n, k, s, p, d in zip((rows, columns), self.kernel, self.stride, self.padding, self.dilation)
        ]
        if min(counts) < 1:
            raise ArgumentError(
                f"{name}: a window of {self.kernel} (dilation {self.dilation}) does not fit into an image of "
                f"{(rows, columns)} with padding {self.padding}"
            )
        return counts[0], counts[1]

    def pick(self, i: int, j: int, output: tuple[int, int]) -> tuple[slice, slice, slice]:
        """The index, in a padded image, of element (i, j) of every window."""
        top, left = i * self.dilation[0], j * self.dilation[1]
        down, right = self.stride
        return (
            slice(None),
            slice(top, top + down * (output[0] - 1) + 1, down),
            slice(left, left + right * (output[1] - 1) + 1, right),
        )


def inside_out(images: Array) -> Array:
    """(image, channel, row, column) as a view (channel, row, column, image)."""
    return images.transpose(1, 2, 3, 0)


def outside_in(images: Array) -> Array:
    """(channel, row, column, image) as a view (image, channel, row, column)."""
    return images.transpose(3, 0, 1, 2)


def pad(images: Array, padding: tuple[int, int], value: float = 0) -> Array:
    """(channel, row, column, image) with `value` around each image; contiguous."""
    xp, (down, right) = backend.xp(images), padding
    if not (down or right):
        return cast(Array, xp.ascontiguousarray(images))
    channels, rows, columns, count = images.shape
    padded = xp.full((channels, rows + 2 * down, columns + 2 * right, count), value, images.dtype)
    padded[:, down : down + rows, right : right + columns] = images
    return cast(Array, padded)


def unfold(images: Array, windows: Windows, output: tuple[int, int]) -> Array:
    """The windows of (channel, row, column, image), one a column: (channel * kernel, output * image)."""
    padded = pad(images, windows.padding)
    channel, row, column, image = padded.strides
    strides = (
        channel,
        row * windows.dilation[0],
        column * windows.dilation[1],
        row * windows.stride[0],
        column * windows.stride[1],
        image,
    )
    shape = (padded.shape[0], *windows.kernel, *output, padded.shape[3])
    view = backend.xp(padded).lib.stride_tricks.as_strided(padded, shape, strides)
    # The lengths in full: -1 is undefined for an empty batch.
    flat = (shape[0] * shape[1] * shape[2], shape[3] * shape[4] * shape[5])
    return cast(Array, view.reshape(flat))


def fold(columns: Array, shape: tuple[int, ...], windows: Windows, output: tuple[int, int]) -> Array:
    """The opposite of `unfold`: where windows overlap, their values are added."""
    channels, rows, width, count = shape
    down, right = windows.padding
    xp = backend.xp(columns)
    into = xp.zeros((channels, rows + 2 * down, width + 2 * right, count), columns.dtype)
    parts = columns.reshape(channels, *windows.kernel, *output, count)
    for i in range(windows.kernel[0]):
        for j in range(windows.kernel[1]):
            into[windows.pick(i, j, output)] += parts[:, i, j]
    return cast(Array, into[:, down : down + rows, right : right + width])


def conv2d(
    input: Tensor | Array,
    weight: Tensor | Array,
    bias: Tensor | Array | None = None,
    stride: Pair = 1,
    padding: Pair = 0,
    dilation: Pair = 1,
    groups: int = 1,
) -> Tensor:
    """2-D cross-correlation, as torch's.

    Args:
        input: (batch, in, rows, columns), floating.
        weight: (out, in / groups, kernel rows, kernel columns).
        bias: (out,) or None.
        stride: one number, or one for rows and one for columns.
        padding: zeros added on each side.
        dilation: distance of the elements of a window.
        groups: channels are cut into this many groups that do not see each other.

    Returns:
        (batch, out, rows', columns'); its memory lies as (out, rows', columns', batch).

    Raises:
        ArgumentError: shapes that do not fit together.
    """
    input, weight = as_tensor(input, "conv2d"), as_tensor(weight, "conv2d")
    bias = None if bias is None else as_tensor(bias, "conv2d")
    _check(input.shape, weight.shape, None if bias is None else bias.shape, groups)
    windows = Windows(
        (weight.shape[2], weight.shape[3]),
        pair("conv2d", "stride", stride, 1),
        pair("conv2d", "padding", padding, 0),
        pair("conv2d", "dilation", dilation, 1),
    )
    output = windows.output("conv2d", *input.shape[2:])
    images, kernels = backend.widen(inside_out(input._data)), backend.widen(weight._data)
    columns = unfold(images, windows, output)
    out = _batched(_grouped(kernels, groups), columns, groups)
    if bias is not None:
        out += bias._data.astype(out.dtype, copy=False).reshape(-1, 1)
    dtype = _result_type(input, weight)
    out = outside_in(out.astype(dtype, copy=False).reshape(len(out), *output, len(input._data)))
    if not recording(input, weight, bias):
        return constant(out)
    kept = columns if columns.nbytes <= KEEP_BYTES else None
    plan = _Plan(windows, output, groups, images, kernels, kept)
    return record("conv2d", out, _rule(plan, input, weight, bias), (input, weight, bias), (input, weight))


class _Plan(NamedTuple):
    """What the backward of a convolution reads."""

    windows: Windows
    output: tuple[int, int]
    groups: int
    images: Array  # (in, row, column, image)
    kernels: Array
    columns: Array | None


def _rule(plan: _Plan, x: Tensor, weight: Tensor, bias: Tensor | None) -> Any:
    needs = x._requires_grad, weight._requires_grad, needs_grad(bias)
    kinds = x.dtype, weight.dtype, weight.dtype if bias is None else bias.dtype

    def rule(gradient: Array) -> Sequence[Array | None]:
        g = backend.xp(gradient).ascontiguousarray(inside_out(backend.widen(gradient)))
        g = g.reshape(g.shape[0], g.shape[1] * g.shape[2] * g.shape[3])
        into_x = _into_images(plan, g).astype(kinds[0], copy=False) if needs[0] else None
        into_weight = _into_kernels(plan, g).astype(kinds[1], copy=False) if needs[1] else None
        into_bias = backend.xp(g).add.reduce(g, 1).astype(kinds[2], copy=False) if needs[2] else None
        return into_x, into_weight, into_bias

    return rule


def _into_images(plan: _Plan, g: Array) -> Array:
    columns = _batched(_grouped(plan.kernels, plan.groups).swapaxes(1, 2), g, plan.groups)
    return outside_in(fold(columns, plan.images.shape, plan.windows, plan.output))


def _into_kernels(plan: _Plan, g: Array) -> Array:
    columns = plan.columns
    if columns is None:
        columns = unfold(plan.images, plan.windows, plan.output)
    xp, groups = backend.xp(g), plan.groups
    into = xp.empty(plan.kernels.shape, xp.result_type(g, columns))
    left = g.reshape(groups, len(g) // groups, g.shape[1])
    right = columns.reshape(groups, len(columns) // groups, columns.shape[1]).swapaxes(1, 2)
    target = _grouped(into, groups)
    for group in range(groups):
        xp.matmul(left[group], right[group], out=target[group])
    return cast(Array, into)


def _grouped(kernels: Array, groups: int) -> Array:
    """(out, ...) as (groups, out / groups, weights of one output)."""
    return kernels.reshape(groups, len(kernels) // groups, math.prod(kernels.shape[1:]))


def _batched(left: Array, right: Array, groups: int) -> Array:
    """(groups, m, k) by (groups * k, n): (groups * m, n)."""
    if groups == 1:
        return cast(Array, left[0] @ right)
    product = left @ right.reshape(groups, len(right) // groups, right.shape[1])
    return product.reshape(groups * left.shape[1], right.shape[1])


def _result_type(x: Tensor, weight: Tensor) -> Any:
    return backend.xp(x._data).result_type(x.dtype, weight.dtype)


def _check(x: tuple[int, ...], weight: tuple[int, ...], bias: tuple[int, ...] | None, groups: int) -> None:
    if len(x) != 4 or len(weight) != 4:
        raise ArgumentError(
            f"conv2d: x must be (batch, in, rows, columns) and weight (out, in / groups, rows, columns), "
            f"got {x} and {weight}"
        )
    if groups < 1 or x[1] != weight[1] * groups or weight[0] % groups:
        raise ArgumentError(
            f"conv2d: {x[1]} channels in {groups} group(s) do not fit a weight of shape {weight}: "
            "it needs (out, channels / groups, ...), and out divisible by groups"
        )
    if bias is not None and bias != weight[:1]:
        raise ArgumentError(f"conv2d: weight {weight} needs a bias of shape {weight[:1]}, got {bias}")
