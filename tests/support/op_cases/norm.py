"""Normalizations and dropout."""

from functools import partial

import numpy as np
from op_case import Case

import psframework.nn.functional as F
from psframework import backend
from psframework.autograd.ops.batch_norm import batch_norm
from psframework.autograd.ops.group_norm import group_norm, instance_norm
from psframework.autograd.ops.layer_norm import layer_norm, rms_norm
from psframework.autograd.record import as_tensor

rng = np.random.default_rng(23)


def arrays(*shapes):
    return [rng.standard_normal(shape) for shape in shapes]


def with_bias_only(op, **options):
    return lambda x, bias: op(x, bias=bias, **options)


def in_evaluation(x, weight, bias):
    """By running statistics, which are where `x` is."""
    x = as_tensor(x, "batch_norm")
    channels = backend.xp(x.data).arange(1, x.shape[1] + 1).astype(np.float32)
    return F.batch_norm(x, channels, channels * 2, weight, bias)


CASES = [
    Case("batch_norm", partial(batch_norm, running=None), arrays((5, 3))),
    Case("batch_norm: sequences", lambda x, w, b: batch_norm(x, None, w, b), arrays((3, 2, 4), (2,), (2,))),
    Case("batch_norm: images", lambda x, w: batch_norm(x, None, w), arrays((2, 3, 2, 3), (3,))),
    Case("batch_norm: bias only", with_bias_only(batch_norm, running=None), arrays((4, 2, 3), (2,))),
    Case("batch_norm: statistics", in_evaluation, arrays((2, 3, 2), (3,), (3,))),
    Case("dropout", lambda x: F.dropout(x, 0.5, rng=np.random.default_rng(0)), arrays((4, 5)), strided=False),
    Case("dropout: in evaluation", lambda x: F.dropout(x, 0.5, False) * 2, arrays((4, 5))),
    Case("layer_norm", lambda x, w, b: layer_norm(x, 4, w, b), arrays((3, 4), (4,), (4,))),
    Case("layer_norm: two axes", lambda x, w: layer_norm(x, (3, 4), w), arrays((2, 3, 4), (3, 4))),
    Case(
        "layer_norm: bias only",
        with_bias_only(layer_norm, normalized_shape=3),
        arrays((2, 2, 3), (3,)),
        narrow=8,
    ),
    Case("layer_norm: eps", lambda x: layer_norm(x, 5, eps=0.5), arrays((2, 5))),
    Case("layer_norm: plain", lambda x: layer_norm(x, (5,)), arrays((5,))),
    Case("layer_norm: empty", lambda x, w, b: layer_norm(x, 4, w, b), arrays((0, 4), (4,), (4,))),
    Case("rms_norm", lambda x, w: rms_norm(x, 4, w), arrays((3, 4), (4,))),
    Case("rms_norm: two axes, eps", lambda x: rms_norm(x, (3, 4), eps=0.1), arrays((2, 3, 4))),
    Case("rms_norm: empty", lambda x, w: rms_norm(x, 4, w), arrays((0, 4), (4,))),
    Case("group_norm", lambda x, w, b: group_norm(x, 2, w, b), arrays((2, 4, 3), (4,), (4,))),
    Case("group_norm: images", lambda x, w: group_norm(x, 1, w), arrays((2, 3, 2, 3), (3,))),
    Case("group_norm: bias only", with_bias_only(group_norm, num_groups=2), arrays((3, 6), (6,))),
    Case("group_norm: eps", lambda x: group_norm(x, 2, eps=0.5), arrays((2, 4, 3))),
    Case("instance_norm: eps", lambda x: instance_norm(x, eps=0.5), arrays((2, 2, 4))),
    Case("batch_norm: eps", lambda x: batch_norm(x, None, eps=0.5), arrays((4, 2))),
    Case("group_norm: empty", lambda x, w, b: group_norm(x, 2, w, b), arrays((0, 4, 3), (4,), (4,))),
    Case("instance_norm", lambda x, w, b: instance_norm(x, weight=w, bias=b), arrays((2, 3, 5), (3,), (3,))),
    Case("instance_norm: images", instance_norm, arrays((2, 2, 3, 4))),
]
