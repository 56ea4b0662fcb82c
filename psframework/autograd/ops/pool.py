"""Max and average pooling. Inside, images lie as (channel, row, column, image), as `windows` says."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from psframework import backend
from psframework.autograd.ops.shape import squeeze, unsqueeze
from psframework.autograd.ops.windows import Sizes, Windows, inside_out, outside_in, pad, sizes
from psframework.autograd.record import as_tensor, constant, record, recording
from psframework.autograd.tensor import Tensor
from psframework.backend import Array
from psframework.errors import ArgumentError


def max_pool1d(
    input: Tensor | Array,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    dilation: Sizes = 1,
    ceil_mode: bool = False,
) -> Tensor:
    """Largest value of each window of (batch, channels, length); see `max_pool2d`."""
    steps = kernel_size, stride, padding, dilation
    return _pool("max_pool1d", input, steps, ceil_mode, _max)


def max_pool2d(
    input: Tensor | Array,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    dilation: Sizes = 1,
    ceil_mode: bool = False,
) -> Tensor:
    """Largest value of each window; NaN if one is. As in torch the first of equal values gets the gradient.

    Args:
        input: (batch, channels, rows, columns) or (channels, rows, columns), floating.
        kernel_size: one number, or rows and columns; so are the next three.
        stride: steps from one window to the next; the kernel's size by default.
        padding: border of minus infinity, at most half of the kernel.
        dilation: steps from one element of a window to the next.
        ceil_mode: count windows that begin in the image, or in the border before it, and end outside.
    """
    steps = kernel_size, stride, padding, dilation
    return _pool("max_pool2d", input, steps, ceil_mode, _max)


def avg_pool1d(
    input: Tensor | Array,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
) -> Tensor:
    """Mean of each window of (batch, channels, length); see `avg_pool2d`."""
    steps = kernel_size, stride, padding, 1
    return _pool("avg_pool1d", input, steps, ceil_mode, _avg(count_include_pad, None))


def avg_pool2d(
    input: Tensor | Array,
    kernel_size: Sizes,
    stride: Sizes | None = None,
    padding: Sizes = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Tensor:
    """Mean of each window. 16-bit floats are summed in float32.

    Args:
        input: (batch, channels, rows, columns) or (channels, rows, columns), floating.
        kernel_size: one number, or rows and columns; so are the next two.
        stride: steps from one window to the next; the kernel's size by default.
        padding: border of zeros, at most half of the kernel.
        ceil_mode: count windows that begin in the image, or in the border before it, and end outside.
        count_include_pad: whether the border's zeros count in the mean.
        divisor_override: what to divide each sum by, instead of the number of elements.
    """
    steps = kernel_size, stride, padding, 1
    if divisor_override is not None and divisor_override == 0:
        raise ArgumentError("avg_pool2d: divisor_override must not be 0")
    return _pool("avg_pool2d", input, steps, ceil_mode, _avg(count_include_pad, divisor_override))


class _Plan:
    """One pooling: where its windows lie in (channel, row, column, image)."""

    def __init__(self, name: str, lengths: tuple[int, ...], windows: Windows) -> None:
        self.name, self.lengths, self.windows = name, lengths, windows
        self.counts = windows.counts(name, lengths)
        self.places = [index for _, index in windows.places(self.counts)]
        self._apart = all(s >= d * (k - 1) + 1 for k, s, _, _, d in zip(*windows))
        self._covering = windows.kernel == windows.stride and windows.padded(lengths) == tuple(
            [n * k for n, k in zip(self.counts, windows.kernel)]
        )

    def spread(self, like: Array, shares: Callable[[int], tuple[Any, ...]]) -> Array:
        """Images whose windows got, at place i, the product of `shares(i)`; (image, channel, row, column)."""
        xp = backend.xp(like)
        make = xp.empty if self._covering else xp.zeros
        into = make((len(like), *self.windows.padded(self.lengths), like.shape[-1]), like.dtype)
        for i, place in enumerate(self.places):
            if self._apart:
                xp.multiply(*shares(i), out=into[place])
            else:
                into[place] += xp.multiply(*shares(i))
        return outside_in(into[self.windows.inner(self.lengths)])


# From the plan and the images to the pooled images and, for the backward, what makes the rule.
_Kind = Callable[[_Plan, Array], tuple[Array, Callable[[Array], Array]]]


def _pool(
    name: str,
    input: Tensor | Array,
    steps: tuple[Sizes, Sizes | None, Sizes, Sizes],
    ceil_mode: bool,
    kind: _Kind,
) -> Tensor:
    x, axes = as_tensor(input, name), 1 if name.endswith("1d") else 2
    if x.ndim == axes + 1:
        return squeeze(_pool(name, unsqueeze(x, 0), steps, ceil_mode, kind), 0)
    if x.ndim != axes + 2:
        where = ("length", "rows, columns")[axes - 1]
        raise ArgumentError(f"{name}: x must be (batch, channels, {where}), got {x.shape}")
    dtype = x.dtype
    if not backend.is_floating(dtype):
        raise ArgumentError(f"{name}: dtype {dtype} is not floating: convert with .astype(np.float32)")
    plan = _Plan(name, x.shape[2:], _windows(name, x.shape[2:], steps, ceil_mode))
    out, into = kind(plan, inside_out(x._data))
    out = outside_in(out.astype(dtype, copy=False))
    if not recording(x):
        return constant(out)

    def rule(gradient: Array) -> Sequence[Array]:
        return (into(inside_out(backend.widen(gradient))).astype(dtype, copy=False),)

    # An average holds no array, but a maximum holds its input and its result.
    held = (x,) if kind is _max else ()
    return record(name, out, rule, (x,), held, saves_output=bool(held))


def _max(plan: _Plan, images: Array) -> tuple[Array, Callable[[Array], Array]]:
    xp, places = backend.xp(images), plan.places
    padded = pad(images, plan.windows, -np.inf)
    out = xp.maximum(padded[places[0]], padded[places[len(places) > 1]])
    for place in places[2:]:
        xp.maximum(out, padded[place], out=out)

    def into(gradient: Array) -> Array:
        free = xp.ones(out.shape, bool)  # the windows that have not given their gradient yet

        def shares(i: int) -> tuple[Array, Array]:
            # What no other element took is the last one's: it needs no look, and NaN equals nothing.
            if i == len(places) - 1:
                return gradient, free
            mine = padded[places[i]] == out
            mine &= free
            free[...] ^= mine
            return gradient, mine

        return plan.spread(gradient, shares)

    return out, into


def _avg(count_include_pad: bool, divisor: int | None) -> _Kind:
    def kind(plan: _Plan, images: Array) -> tuple[Array, Callable[[Array], Array]]:
        padded = pad(backend.widen(images), plan.windows)
        total = padded[plan.places[0]].copy()
        for place in plan.places[1:]:
            total += padded[place]
        factor = 1 / divisor if divisor is not None else _factors(plan, count_include_pad, total)
        total *= factor
        return total, lambda gradient: plan.spread(gradient, lambda i: (gradient, factor))

    return kind


def _factors(plan: _Plan, count_include_pad: bool, like: Array) -> Any:
    """One over the number of elements in each window: a number, or an array if they differ."""
    windows, inverse = plan.windows, np.ones((1,))
    for n, k, s, before, count in zip(
        plan.lengths, windows.kernel, windows.stride, windows.before, plan.counts
    ):
        start = np.arange(count) * s - before
        # Where ceil_mode let a window run over the border, what is beyond does not count.
        low, high = (start, n + before) if count_include_pad else (np.maximum(start, 0), n)
        inverse = inverse[..., None] / (np.minimum(start + k, high) - low)
    if (inverse == inverse.flat[0]).all():
        return float(inverse.flat[0])
    return backend.array_like(inverse[..., None].astype(like.dtype), like)


def _windows(
    name: str, lengths: tuple[int, ...], steps: tuple[Sizes, Sizes | None, Sizes, Sizes], ceil_mode: bool
) -> Windows:
    axes = len(lengths)
    kernel = sizes(name, "kernel_size", steps[0], axes, 1)
    stride = kernel if steps[1] is None else sizes(name, "stride", steps[1], axes, 1)
    border = sizes(name, "padding", steps[2], axes, 0)
    dilation = sizes(name, "dilation", steps[3], axes, 1)
    if any(2 * p > k for p, k in zip(border, kernel)):
        raise ArgumentError(f"{name}: padding {border} is more than half of the kernel {kernel}")
    after = list(border)
    if ceil_mode:
        for i, (n, k, s, p, d) in enumerate(zip(lengths, kernel, stride, border, dilation)):
            span = d * (k - 1)
            last = math.ceil((n + 2 * p - span - 1) / s)
            last -= last * s >= n + p  # it would begin behind the image
            after[i] = max(p, last * s + span + 1 - n - p)
    return Windows(kernel, stride, border, tuple(after), dilation)
