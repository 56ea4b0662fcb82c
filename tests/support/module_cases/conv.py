"""Convolutions and their transposes."""

import numpy as np
from module_case import ModuleCase

from psframework import nn

rng = np.random.default_rng(31)


def case(name, args, shape, **options):
    special = "".join(f", {key}={value}" for key, value in options.items())
    make = getattr(nn, name)
    label = f"{name}: {special[2:]}" if special else name
    return ModuleCase(label, lambda dtype: make(*args, **options, dtype=dtype), [rng.standard_normal(shape)])


CASES = [
    case("Conv1d", (2, 3, 3), (2, 2, 5)),
    case("Conv1d", (2, 4, 2), (2, 2, 6), stride=2, padding=1, dilation=2, groups=2, bias=False),
    case("Conv1d", (2, 2, 4), (2, 5), padding="same"),
    case("Conv1d", (2, 2, 3), (2, 2, 5), padding=2, padding_mode="circular"),
    case("Conv2d", (2, 3, 2), (2, 2, 3, 4)),
    case("Conv2d", (2, 2, (3, 2)), (1, 2, 4, 5), stride=(2, 1), padding=(1, 0), dilation=(1, 2), groups=2),
    case("Conv2d", (1, 2, 3), (1, 1, 3, 4), padding=1, padding_mode="reflect"),
    case("Conv2d", (1, 2, 2), (1, 1, 3, 4), padding="same", padding_mode="replicate"),
    case("ConvTranspose1d", (2, 3, 3), (2, 2, 4)),
    case("ConvTranspose1d", (2, 4, 3), (2, 2, 3), stride=2, padding=1, output_padding=1, groups=2),
    case("ConvTranspose2d", (2, 2, 2), (2, 2, 2, 3)),
    case("ConvTranspose2d", (2, 1, (3, 2)), (1, 2, 3, 2), stride=2, dilation=(1, 2), bias=False),
]
