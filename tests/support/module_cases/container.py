"""Containers: modules and parameters that count as their owner's."""

from itertools import pairwise

import numpy as np
from module_case import ModuleCase

from psframework import nn

rng = np.random.default_rng(0)
X = rng.standard_normal((2, 3))


def linears(dtype, sizes=(3, 4, 2)):
    return [nn.Linear(i, o, dtype=dtype) for i, o in pairwise(sizes)]


def in_turn(modules, x):
    for module in modules:
        x = module(x)
    return x


CASES = [
    ModuleCase("Sequential", lambda dtype: nn.Sequential(*linears(dtype)), [X]),
    ModuleCase("Sequential: named", lambda dtype: nn.Sequential(dict(zip("ab", linears(dtype)))), [X]),
    ModuleCase("Identity", lambda dtype: nn.Identity(), [X], call=lambda module, x: module(x) * 2),
    ModuleCase("ModuleList", lambda dtype: nn.ModuleList(linears(dtype)), [X], call=in_turn),
    ModuleCase(
        "ModuleDict",
        lambda dtype: nn.ModuleDict(dict(zip("ab", linears(dtype)))),
        [X],
        call=lambda modules, x: in_turn(modules.values(), x),
    ),
    ModuleCase(
        "ParameterList",
        lambda dtype: nn.ParameterList([np.full(3, 0.5, dtype), np.full(1, 2.0, dtype)]),
        [X],
        call=lambda parameters, x: x * parameters[0] + parameters[1],
    ),
    ModuleCase(
        "ParameterDict",
        lambda dtype: nn.ParameterDict({"scale": np.full(3, 0.5, dtype)}),
        [X],
        call=lambda parameters, x: x * parameters["scale"],
    ),
]
