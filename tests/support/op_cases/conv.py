"""Convolution and its transpose: every option, one window, strided and empty batches, groups."""

from functools import partial

import numpy as np
from op_case import Case

from psframework.autograd.ops.conv import conv1d, conv2d
from psframework.autograd.ops.conv_transpose import conv_transpose1d, conv_transpose2d

rng = np.random.default_rng(21)


def arrays(*shapes):
    return [rng.standard_normal(shape) for shape in shapes]


CASES = [
    Case("conv1d", conv1d, arrays((2, 2, 5), (3, 2, 2), (3,))),
    Case(
        "conv1d: all options",
        partial(conv1d, stride=2, padding=2, dilation=2, groups=2),
        arrays((2, 4, 6), (4, 2, 3), (4,)),
    ),
    Case("conv1d: same, even kernel", partial(conv1d, padding="same"), arrays((2, 1, 4), (2, 1, 4))),
    Case("conv1d: depthwise", partial(conv1d, groups=3, padding=1), arrays((2, 3, 4), (3, 1, 3), (3,))),
    Case("conv1d: one example", conv1d, arrays((2, 5), (3, 2, 3), (3,))),
    Case("conv2d", conv2d, arrays((2, 2, 3, 4), (2, 2, 2, 3), (2,))),
    Case(
        "conv2d: all options",
        partial(conv2d, stride=(2, 1), padding=(1, 2), dilation=(1, 2), groups=2),
        arrays((1, 4, 4, 3), (2, 2, 3, 2), (2,)),
    ),
    Case("conv2d: same", partial(conv2d, padding="same", dilation=2), arrays((1, 2, 4, 5), (2, 2, 3, 2))),
    Case("conv2d: one window", conv2d, arrays((2, 2, 3, 3), (2, 2, 3, 3), (2,))),
    Case("conv2d: 1 by 1", conv2d, arrays((2, 3, 2, 2), (4, 3, 1, 1), (4,))),
    Case("conv2d: empty batch", partial(conv2d, padding=1), arrays((0, 2, 3, 3), (2, 2, 3, 3), (2,))),
    Case("conv2d: one example", conv2d, arrays((2, 3, 3), (2, 2, 2, 2), (2,))),
    Case("conv_transpose1d", conv_transpose1d, arrays((2, 3, 4), (3, 2, 2), (2,))),
    Case(
        "conv_transpose1d: all options",
        partial(conv_transpose1d, stride=2, padding=1, output_padding=1, groups=2, dilation=2),
        arrays((2, 4, 3), (4, 1, 3), (2,)),
    ),
    Case("conv_transpose1d: one example", conv_transpose1d, arrays((3, 4), (3, 2, 3), (2,))),
    Case("conv_transpose2d", conv_transpose2d, arrays((2, 2, 2, 3), (2, 3, 2, 2), (3,))),
    Case(
        "conv_transpose2d: all options",
        partial(
            conv_transpose2d,
            stride=(2, 1),
            padding=(0, 1),
            output_padding=(1, 0),
            groups=2,
            dilation=(1, 2),
        ),
        arrays((1, 4, 2, 3), (4, 1, 3, 2), (2,)),
    ),
    Case("conv_transpose2d: empty batch", conv_transpose2d, arrays((0, 2, 2, 3), (2, 3, 2, 2), (3,))),
]
