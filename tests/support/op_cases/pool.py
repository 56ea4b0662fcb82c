"""Pooling with windows of a given size, and of a given number; resizing."""

from functools import partial

import numpy as np
from op_case import Case

import psframework.nn.functional as F
from psframework.autograd.ops.adaptive import (
    adaptive_avg_pool1d,
    adaptive_avg_pool2d,
    adaptive_max_pool1d,
    adaptive_max_pool2d,
)
from psframework.autograd.ops.pool import avg_pool1d, avg_pool2d, max_pool1d, max_pool2d

rng = np.random.default_rng(22)


def image(*shape):
    """Numbers so far apart that no small step, and no rounding to 16 bits, changes which is largest."""
    return rng.permutation(np.arange(np.prod(shape, dtype=int))).reshape(shape) * 0.125


def cases(name, op, image, options):
    return [
        Case(f"{name}: {setting}" if setting else name, partial(op, **setting), [image])
        for setting in options
    ]


WINDOWS = [
    {"kernel_size": 2},
    {"kernel_size": 3, "stride": 2, "padding": 1},
    {"kernel_size": 2, "stride": 3, "ceil_mode": True},
]
MAX = [*WINDOWS, {"kernel_size": 2, "stride": 1, "dilation": 2}]
AVG = [*WINDOWS, {"kernel_size": 3, "stride": 2, "padding": 1, "count_include_pad": False}]
CASES = [
    *cases("max_pool1d", max_pool1d, image(2, 2, 7), MAX),
    *cases("max_pool2d", max_pool2d, image(2, 1, 5, 5), MAX),
    *cases("avg_pool1d", avg_pool1d, image(2, 2, 7), AVG),
    *cases("avg_pool2d", avg_pool2d, image(2, 1, 5, 5), [*AVG, {"kernel_size": 2, "divisor_override": 3}]),
]
for op in (max_pool2d, avg_pool2d):
    name = op.__name__
    CASES += [
        Case(f"{name}: one window", partial(op, kernel_size=(2, 3)), [image(2, 3, 2, 3)]),
        Case(f"{name}: empty batch", partial(op, kernel_size=2), [image(0, 3, 4, 4)]),
        Case(f"{name}: one example", partial(op, kernel_size=2), [image(3, 4, 4)]),
    ]
for op in (adaptive_avg_pool1d, adaptive_max_pool1d):
    CASES += cases(op.__name__, op, image(2, 3, 6), [{"output_size": n} for n in (1, 3, 4)])
for op in (adaptive_avg_pool2d, adaptive_max_pool2d):
    sizes = (1, 2, (3, None), (None, 5))
    CASES += cases(op.__name__, op, image(2, 1, 4, 6), [{"output_size": n} for n in sizes])
    CASES.append(Case(f"{op.__name__}: empty batch", partial(op, output_size=3), [image(0, 2, 4, 4)]))
CASES += [
    Case("interpolate", lambda x: F.interpolate(x, scale_factor=2), [image(2, 1, 3, 2)]),
    Case("interpolate: size", lambda x: F.interpolate(x, (2, 5)), [image(1, 2, 4, 3)]),
    Case("interpolate: as it was", lambda x: F.interpolate(x, scale_factor=1), [image(1, 2, 4)]),
]
