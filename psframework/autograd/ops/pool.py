"""Max and average pooling. Images lie inside as in `conv`: (channel, row, column, image)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from psframework import backend
from psframework.autograd.ops.conv import Pair, Windows, inside_out, outside_in, pad, pair
from psframework.autograd.record import as_tensor, constant, record, recording
from psframework.autograd.tensor import Tensor
from psframework.backend import Array
from psframework.errors import ArgumentError


def _windows(name: str, x: Tensor, kernel: Pair, stride: Pair | None, padding: Pair) -> Windows:
    if x.ndim != 4:
        raise ArgumentError(f"{name}: x must be (batch, channels, rows, columns), got {x.shape}")
    size = pair(name, "kernel_size", kernel, 1)
    border = pair(name, "padding", padding, 0)
    if any(2 * p > k for p, k in zip(border, size)):
        raise ArgumentError(f"{name}: padding {border} is more than half of the kernel {size}")
    return Windows(size, size if stride is None else pair(name, "stride", stride, 1), border, (1, 1))


def _unpad(into: Array, padding: tuple[int, int], shape: tuple[int, ...]) -> Array:
    down, right = padding
    return into[:, down : down + shape[2], right : right + shape[3]]


def max_pool2d(
    input: Tensor | Array, kernel_size: Pair, stride: Pair | None = None, padding: Pair = 0
) -> Tensor:
    """Largest value of each window; among equal ones the first gets the gradient.

    Args:
        input: (batch, channels, rows, columns), floating.
        kernel_size: one number, or rows and columns.
        stride: the kernel's size by default.
        padding: border of minus infinity, at most half of the kernel.
    """
    input = as_tensor(input, "max_pool2d")
    windows = _windows("max_pool2d", input, kernel_size, stride, padding)
    shape = input.shape
    output = windows.output("max_pool2d", shape[2], shape[3])
    if not backend.is_floating(input.dtype):
        raise ArgumentError(
            f"max_pool2d: dtype {input.dtype} is not floating: convert with .astype(np.float32)"
        )
    xp = backend.xp(input._data)
    padded = pad(inside_out(input._data), windows.padding, -np.inf)
    places = [windows.pick(i, j, output) for i in range(windows.kernel[0]) for j in range(windows.kernel[1])]
    out = padded[places[0]].copy()
    for place in places[1:]:
        xp.maximum(out, padded[place], out=out)
    if not recording(input):
        return constant(outside_in(out))

    def rule(gradient: Array) -> Sequence[Array]:
        left = xp.array(inside_out(gradient), copy=True, order="C")
        into = xp.zeros(padded.shape, gradient.dtype)
        for place in places:
            # Whatever a window has given to an earlier element is gone from `left`.
            share = left * (padded[place] == out)
            into[place] += share
            left -= share
        return (outside_in(_unpad(into, windows.padding, shape)),)

    return record("max_pool2d", outside_in(out), rule, (input,), (input,), saves_output=True)


def avg_pool2d(
    input: Tensor | Array, kernel_size: Pair, stride: Pair | None = None, padding: Pair = 0
) -> Tensor:
    """Mean of each window; padding counts as zeros. 16-bit floats are summed in float32.

    Args:
        input: (batch, channels, rows, columns), floating.
        kernel_size: one number, or rows and columns.
        stride: the kernel's size by default.
        padding: border of zeros, at most half of the kernel.
    """
    input = as_tensor(input, "avg_pool2d")
    windows = _windows("avg_pool2d", input, kernel_size, stride, padding)
    shape, dtype = input.shape, input.dtype
    output = windows.output("avg_pool2d", shape[2], shape[3])
    xp = backend.xp(input._data)
    padded = pad(inside_out(backend.widen(input._data)), windows.padding)
    places = [windows.pick(i, j, output) for i in range(windows.kernel[0]) for j in range(windows.kernel[1])]
    total = padded[places[0]].copy()
    for place in places[1:]:
        total += padded[place]
    out = outside_in((total / len(places)).astype(dtype, copy=False))
    if not recording(input):
        return constant(out)
    wide = padded.shape

    def rule(gradient: Array) -> Sequence[Array]:
        share = inside_out(gradient) / len(places)
        into = xp.zeros(wide, gradient.dtype)
        for place in places:
            into[place] += share
        return (outside_in(_unpad(into, windows.padding, shape)),)

    return record("avg_pool2d", out, rule, (input,))
