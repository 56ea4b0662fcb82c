"""Pooling and flattening."""

import numpy as np
from module_case import ModuleCase

from psframework import nn

rng = np.random.default_rng(32)


def case(name, *args, shape, **options):
    special = ", ".join([*map(str, args[1:]), *(f"{key}={value}" for key, value in options.items())])
    # Numbers so far apart that no small step, and no rounding to 16 bits, changes which is largest.
    image = rng.permutation(np.arange(np.prod(shape))).reshape(shape) * 0.125
    make = getattr(nn, name)
    return ModuleCase(
        f"{name}: {special}" if special else name, lambda dtype: make(*args, **options), [image]
    )


CASES = [
    case("MaxPool1d", 2, shape=(2, 2, 6)),
    case("MaxPool1d", 3, 2, 1, shape=(2, 2, 6), ceil_mode=True),
    case("MaxPool2d", 2, shape=(2, 2, 4, 4)),
    case("MaxPool2d", (2, 1), shape=(1, 2, 5, 4), dilation=2),
    case("AvgPool1d", 2, shape=(2, 2, 6)),
    case("AvgPool1d", 3, 2, 1, shape=(2, 2, 6), count_include_pad=False),
    case("AvgPool2d", 2, shape=(2, 2, 4, 4)),
    case("AvgPool2d", 2, 3, shape=(2, 2, 4, 4), ceil_mode=True, divisor_override=3),
    case("AdaptiveAvgPool1d", 1, shape=(2, 2, 5)),
    case("AdaptiveAvgPool2d", (2, None), shape=(2, 2, 3, 4)),
    case("AdaptiveMaxPool1d", 2, shape=(2, 2, 5)),
    case("AdaptiveMaxPool2d", 2, shape=(2, 2, 3, 4)),
    case("Upsample", shape=(2, 2, 3), scale_factor=2),
    case("Upsample", shape=(1, 2, 3, 4), size=(6, 2)),
    case("Flatten", shape=(2, 3, 4)),
    case("Flatten", 0, 1, shape=(2, 3, 4)),
]
