"""Convolution as one matrix product over unfolded windows (see `windows`)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, cast

from psframework import backend
from psframework.autograd.ops.norm import row_sums
from psframework.autograd.ops.shape import squeeze, unsqueeze
from psframework.autograd.ops.thin import long_product, wide_product
from psframework.autograd.ops.windows import Sizes, Windows, fold, inside_out, outside_in, sizes, unfold
from psframework.autograd.record import as_tensor, constant, guarded, needs_grad, record, recording
from psframework.autograd.tensor import Tensor
from psframework.backend import Array
from psframework.errors import ArgumentError

# Unfolded windows above this size are made again in the backward instead of being kept.
KEEP_BYTES = 64 << 20


class Correlation(NamedTuple):
    """What a convolution does to arrays: images lie as (channel, row, column, image), outputs as matrices.

    Attributes:
        windows: where the windows lie.
        lengths: of the images.
        counts: how many windows there are along each axis.
        groups: channels are cut into this many groups that do not see each other.
    """

    windows: Windows
    lengths: tuple[int, ...]
    counts: tuple[int, ...]
    groups: int

    def unfold(self, images: Array) -> Array:
        """The windows: (in * kernel, windows * image)."""
        return unfold(images, self.windows, self.counts)

    def products(self, kernels: Array, columns: Array) -> Array:
        """Of kernels (out, in / groups, ...) and unfolded windows: (out, windows * image)."""
        return _batched(_grouped(kernels, self.groups), columns, self.groups)

    def transposed(self, kernels: Array, outputs: Array, batch: int) -> Array:
        """From outputs (out, windows * image) back to images (in, row, column, image)."""
        columns = _batched(_grouped(kernels, self.groups).swapaxes(1, 2), outputs, self.groups)
        channels = kernels.shape[1] * self.groups
        return fold(columns, (channels, *self.lengths, batch), self.windows, self.counts)

    def kernels(self, outputs: Array, columns: Array, shape: tuple[int, ...]) -> Array:
        """The gradient of kernels of this shape, from that of the outputs and the unfolded windows."""
        xp, groups = backend.xp(outputs), self.groups
        if groups == 1:
            return long_product(outputs, columns).reshape(shape)
        into = xp.empty(shape, xp.result_type(outputs, columns))
        left = outputs.reshape(groups, len(outputs) // groups, outputs.shape[1])
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
        return wide_product(left[0], right)
    right = right.reshape(groups, len(right) // groups, right.shape[1])
    # One output a group, as of a depthwise convolution: broadcasting is many times as fast as matmul.
    product = left * right if left.shape[2] == 1 else left @ right
    return product.reshape(groups * left.shape[1], right.shape[2])


def flat(images: Array) -> Array:
    """(image, channel, row, column) as a matrix (channel, row * column * image), contiguous."""
    inside = backend.xp(images).ascontiguousarray(inside_out(images))
    return cast(Array, inside.reshape(len(inside), math.prod(inside.shape[1:])))


@guarded("conv1d")
def conv1d(
    input: Tensor | Array,
    weight: Tensor | Array,
    bias: Tensor | Array | None = None,
    stride: Sizes = 1,
    padding: Sizes | str = 0,
    dilation: Sizes = 1,
    groups: int = 1,
) -> Tensor:
    """1-D cross-correlation, as torch's.

    Args:
        input: (batch, in, length) or (in, length), floating.
        weight: (out, in / groups, kernel).
        bias: (out,) or None.
        stride: steps from one window to the next.
        padding: zeros added on each side; "valid" for none, "same" to keep the length (stride 1).
        dilation: steps from one element of a window to the next.
        groups: channels are cut into this many groups that do not see each other.

    Returns:
        (batch, out, length'), in memory (out, length', batch); or (out, length').

    Raises:
        ArgumentError: shapes that do not fit together.
    """
    return _conv("conv1d", input, weight, bias, (stride, padding, dilation), groups)


@guarded("conv2d")
def conv2d(
    input: Tensor | Array,
    weight: Tensor | Array,
    bias: Tensor | Array | None = None,
    stride: Sizes = 1,
    padding: Sizes | str = 0,
    dilation: Sizes = 1,
    groups: int = 1,
) -> Tensor:
    """2-D cross-correlation, as torch's.

    Args:
        input: (batch, in, rows, columns) or (in, rows, columns), floating.
        weight: (out, in / groups, kernel rows, kernel columns).
        bias: (out,) or None.
        stride: one number, or one for rows and one for columns; so are padding and dilation.
        padding: zeros added on each side; "valid" for none, "same" to keep the size (stride 1).
        dilation: steps from one element of a window to the next.
        groups: channels are cut into this many groups that do not see each other.

    Returns:
        (batch, out, rows', columns'), in memory (out, rows', columns', batch); or (out, rows', columns').

    Raises:
        ArgumentError: shapes that do not fit together.
    """
    return _conv("conv2d", input, weight, bias, (stride, padding, dilation), groups)


def _conv(
    name: str,
    input: Tensor | Array,
    weight: Tensor | Array,
    bias: Tensor | Array | None,
    steps: tuple[Sizes, Sizes | str, Sizes],
    groups: int,
) -> Tensor:
    axes = 1 if name.endswith("1d") else 2
    x, weight = as_tensor(input, name), as_tensor(weight, name)
    bias = None if bias is None else as_tensor(bias, name)
    if x.ndim == axes + 1:
        return squeeze(_conv(name, unsqueeze(x, 0), weight, bias, steps, groups), 0)
    check(name, axes, x, weight)
    _check_channels(name, x.shape, weight.shape, None if bias is None else bias.shape, groups)
    windows = _windows(name, weight.shape[2:], *steps)
    plan = Correlation(windows, x.shape[2:], windows.counts(name, x.shape[2:]), groups)
    images, kernels = backend.widen(inside_out(x._data)), backend.widen(weight._data)
    columns = plan.unfold(images)
    out = plan.products(kernels, columns)
    if bias is not None:
        out += bias._data.astype(out.dtype, copy=False).reshape(-1, 1)
    out = out.astype(result_type(x, weight), copy=False).reshape(len(out), *plan.counts, len(x._data))
    out = outside_in(out)
    if not recording(x, weight, bias):
        return constant(out)
    saved = _Saved(plan, images, kernels, columns if columns.nbytes <= KEEP_BYTES else None)
    return record(name, out, _rule(saved, x, weight, bias), (x, weight, bias), (x, weight))


class _Saved(NamedTuple):
    """What the backward of a convolution reads."""

    plan: Correlation
    images: Array  # (in, row, column, image)
    kernels: Array
    columns: Array | None


def _rule(saved: _Saved, x: Tensor, weight: Tensor, bias: Tensor | None) -> Any:
    plan, images, kernels, columns = saved
    needs = x._requires_grad, weight._requires_grad, needs_grad(bias)
    kinds = x.dtype, weight.dtype, weight.dtype if bias is None else bias.dtype

    def rule(gradient: Array, wanted: Sequence[bool] = needs) -> Sequence[Array | None]:
        g = flat(backend.widen(gradient))
        into_x = into_weight = into_bias = None
        if wanted[0]:
            into_x = outside_in(plan.transposed(kernels, g, images.shape[-1])).astype(kinds[0], copy=False)
        if wanted[1]:
            unfolded = plan.unfold(images) if columns is None else columns
            into_weight = plan.kernels(g, unfolded, kernels.shape).astype(kinds[1], copy=False)
        if wanted[2]:
            into_bias = row_sums(g).astype(kinds[2], copy=False)
        return into_x, into_weight, into_bias

    return rule


def result_type(x: Tensor, weight: Tensor) -> Any:
    """The dtype of a convolution's result."""
    return backend.xp(x._data).result_type(x.dtype, weight.dtype)


def _windows(
    name: str, kernel: tuple[int, ...], stride: Sizes, padding: Sizes | str, dilation: Sizes
) -> Windows:
    axes = len(kernel)
    steps = sizes(name, "stride", stride, axes, 1)
    spread = sizes(name, "dilation", dilation, axes, 1)
    if not isinstance(padding, str):
        border = sizes(name, "padding", padding, axes, 0)
        return Windows(kernel, steps, border, border, spread)
    total = tuple([d * (k - 1) if padding == "same" else 0 for d, k in zip(spread, kernel)])
    if padding not in ("same", "valid") or (padding == "same" and max(steps) > 1):
        raise ArgumentError(f'{name}: padding={padding!r} is no number, "valid", or "same" with stride 1')
    # Where the sum is odd the element more goes behind, as in torch.
    return Windows(kernel, steps, tuple([t // 2 for t in total]), tuple([t - t // 2 for t in total]), spread)


def check(name: str, axes: int, x: Tensor, weight: Tensor) -> None:
    """Raises ArgumentError unless x and weight have the axes of a convolution, and floating dtypes."""
    if x.ndim != axes + 2 or weight.ndim != axes + 2:
        where = ("length", "rows, columns")[axes - 1]
        first = "in, out" if "transpose" in name else "out, in"
        raise ArgumentError(
            f"{name}: x must be (batch, in, {where}) and weight ({first} / groups, {where}), "
            f"got {x.shape} and {weight.shape}"
        )
    for dtype in (x.dtype, weight.dtype):
        if not backend.is_floating(dtype):
            raise ArgumentError(f"{name}: dtype {dtype} is not floating: convert with .astype(np.float32)")


def _check_channels(
    name: str, x: tuple[int, ...], weight: tuple[int, ...], bias: tuple[int, ...] | None, groups: int
) -> None:
    if groups < 1 or x[1] != weight[1] * groups or weight[0] % groups:
        raise ArgumentError(
            f"{name}: {x[1]} channels in {groups} group(s) do not fit a weight of shape {weight}: "
            "it needs (out, channels / groups, ...), and out divisible by groups"
        )
    if bias is not None and bias != weight[:1]:
        raise ArgumentError(f"{name}: weight {weight} needs a bias of shape {weight[:1]}, got {bias}")
