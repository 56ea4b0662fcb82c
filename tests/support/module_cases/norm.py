"""Normalizations."""

import numpy as np
from module_case import ModuleCase

from psframework import nn

rng = np.random.default_rng(33)


def case(name, *args, shape, evaluation=False, **options):
    special = ", ".join(f"{key}={value}" for key, value in options.items())
    special += "in evaluation" if evaluation else ""

    def make(dtype):
        return getattr(nn, name)(*args, **options, dtype=dtype)

    call = in_evaluation if evaluation else None
    return ModuleCase(
        f"{name}: {special}" if special else name, make, [rng.standard_normal(shape)], call=call
    )


def in_evaluation(module, x):
    return module.eval()(x)


CASES = [
    case("BatchNorm1d", 3, shape=(5, 3)),
    case("BatchNorm1d", 3, shape=(3, 3, 4), affine=False, track_running_stats=False),
    case("BatchNorm1d", 3, shape=(3, 3), evaluation=True),
    case("BatchNorm2d", 2, shape=(3, 2, 3, 2)),
    case("BatchNorm2d", 2, shape=(3, 2, 3, 2), momentum=None),
    case("LayerNorm", 4, shape=(3, 4)),
    case("LayerNorm", (2, 3), shape=(2, 2, 3), eps=1e-3, bias=False),
    case("LayerNorm", 5, shape=(5,), elementwise_affine=False),
    case("RMSNorm", 4, shape=(2, 3, 4)),
    case("RMSNorm", (2, 3), shape=(2, 2, 3), eps=1e-3, elementwise_affine=False),
    case("GroupNorm", 2, 4, shape=(2, 4, 3)),
    case("GroupNorm", 3, 3, shape=(2, 3, 2, 3), affine=False),
    case("InstanceNorm1d", 2, shape=(3, 2, 4)),
    case("InstanceNorm2d", 2, shape=(2, 2, 2, 3), affine=True),
]
