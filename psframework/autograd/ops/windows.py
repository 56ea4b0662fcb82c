"""Windows over images: where they lie, and how images are unfolded into them and folded back.

Inside the operations on windows an image lies as (channel, row, column, image): then unfolding, and folding
gradients back, move runs as long as a row of the whole batch, and a product's result already lies as the next
layer wants it. To the user shapes are (image, channel, row, column); such an array is a transposed view of
that memory. All of it holds for images of one axis, (channel, length, image), and of three.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias, cast

from psframework import backend
from psframework.backend import Array
from psframework.errors import ArgumentError

# One number for all axes of an image, or one for each.
Sizes: TypeAlias = int | Sequence[int]


def sizes(name: str, what: str, value: Sizes, axes: int, least: int) -> tuple[int, ...]:
    """`value` for each of `axes` axes.

    Raises:
        ArgumentError: it is neither a number nor one for each axis, or one is below `least`.
    """
    try:
        each = tuple(map(operator.index, value if isinstance(value, Sequence) else (value,)))
    except TypeError:
        each = ()
    if len(each) == 1:
        each *= axes
    if len(each) != axes or min(each) < least:
        many = f", or {axes} of them" if axes > 1 else ""
        raise ArgumentError(f"{name}: {what}={value!r} must be an integer of at least {least}{many}")
    return each


class Windows(NamedTuple):
    """Where the windows of a convolution or a pooling lie: for each axis of an image one number.

    Attributes:
        kernel: elements of a window.
        stride: steps from one window to the next.
        before: elements added in front of the image.
        after: elements added behind it.
        dilation: steps from one element of a window to the next.
    """

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    before: tuple[int, ...]
    after: tuple[int, ...]
    dilation: tuple[int, ...]

    def counts(self, name: str, lengths: Sequence[int]) -> tuple[int, ...]:
        """How many windows fit along each axis of an image.

        Raises:
            ArgumentError: none fits.
        """
        counts = [
            (n + before + after - d * (k - 1) - 1) // s + 1
            for n, k, s, before, after, d in zip(lengths, *self, strict=True)
        ]
        if min(counts) < 1:
            raise ArgumentError(
                f"{name}: a window of {self.kernel} (dilation {self.dilation}) does not fit into an image of "
                f"{tuple(lengths)} with padding {self.before}"
            )
        return tuple(counts)

    def padded(self, lengths: Sequence[int]) -> tuple[int, ...]:
        """Lengths of an image with its border."""
        return tuple([n + before + after for n, before, after in zip(lengths, self.before, self.after)])

    def inner(self, lengths: Sequence[int]) -> tuple[slice, ...]:
        """Index of the image in a padded (channel, row, column, image)."""
        return (slice(None), *[slice(b, b + n) for b, n in zip(self.before, lengths)])

    def places(self, counts: Sequence[int]) -> Iterator[tuple[tuple[int, ...], tuple[slice, ...]]]:
        """Each place in a window, and the index of that element of every window in a padded image."""
        for place in itertools.product(*map(range, self.kernel)):
            steps = [
                slice(i * d, i * d + s * (n - 1) + 1, s)
                for i, d, s, n in zip(place, self.dilation, self.stride, counts)
            ]
            yield place, (slice(None), *steps)


def inside_out(images: Array) -> Array:
    """(image, channel, row, column) as a view (channel, row, column, image)."""
    return images.transpose(*range(1, images.ndim), 0)


def outside_in(images: Array) -> Array:
    """(channel, row, column, image) as a view (image, channel, row, column)."""
    return images.transpose(images.ndim - 1, *range(images.ndim - 1))


def pad(images: Array, windows: Windows, value: float = 0) -> Array:
    """(channel, row, column, image) with `value` around each image; contiguous."""
    xp, lengths = backend.xp(images), images.shape[1:-1]
    if not (any(windows.before) or any(windows.after)):
        return cast(Array, xp.ascontiguousarray(images))
    shape = (len(images), *windows.padded(lengths), images.shape[-1])
    padded = xp.full(shape, value, images.dtype)
    padded[windows.inner(lengths)] = images
    return cast(Array, padded)


def unfold(images: Array, windows: Windows, counts: tuple[int, ...]) -> Array:
    """The windows of (channel, row, column, image), one a column: (channel * kernel, windows * image)."""
    padded = pad(images, windows)
    channel, *steps, image = padded.strides
    within = [step * d for step, d in zip(steps, windows.dilation)]
    across = [step * s for step, s in zip(steps, windows.stride)]
    shape = (len(padded), *windows.kernel, *counts, padded.shape[-1])
    view = backend.xp(padded).lib.stride_tricks.as_strided(padded, shape, (channel, *within, *across, image))
    # The lengths in full: -1 is undefined for an empty batch.
    return cast(Array, view.reshape(shape[0] * math.prod(windows.kernel), math.prod(counts) * shape[-1]))


def fold(columns: Array, shape: tuple[int, ...], windows: Windows, counts: tuple[int, ...]) -> Array:
    """The opposite of `unfold`, to (channel, row, column, image): where windows overlap, values are added."""
    channels, *lengths, count = shape
    into = backend.xp(columns).zeros((channels, *windows.padded(lengths), count), columns.dtype)
    parts = columns.reshape(channels, *windows.kernel, *counts, count)
    everything: Any = slice(None)
    for place, index in windows.places(counts):
        into[index] += parts[(everything, *place)]
    return cast(Array, into[windows.inner(lengths)])
