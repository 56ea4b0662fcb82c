"""Names, order and defaults of arguments are torch's; what differs is listed here, with the reason."""

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import psframework.nn.functional as F
from psframework import nn, optim

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.oracle

# Of torch's, nowhere offered: where arrays are and how kernels run is no business of a layer (`to`, fused
# kernels), and old or internal names.
LEFT_OUT = {
    "device", "inplace", "size_average", "reduce", "foreach", "fused", "capturable", "differentiable",
    "_weight", "_freeze", "_stacklevel", "out", "return_indices", "align_corners",
    "recompute_scale_factor", "antialias", "add_bias_kv", "add_zero_attn", "enable_nested_tensor",
    "mask_check", "decoupled_weight_decay",
}  # fmt: skip
# By keyword only, if at all: they come behind torch's.
ADDED = {"dtype", "rng", "generator", "lengths"}

DIFFERENT = {
    # A dimension that is guessed from the number of axes is torch's oldest trap: here it is the last one.
    "nn.Softmax": "dim",
    "nn.LogSoftmax": "dim",
    "F.softmax": "dim",
    "F.log_softmax": "dim",
    # The default is said by its name, so that a layer can be made again from plain values.
    "nn.TransformerEncoderLayer": "activation",
    "nn.TransformerDecoderLayer": "activation",
    # An iterable of nothing says the same as None.
    "nn.ModuleList": "modules",
    "nn.ParameterList": "parameters",
    # 0, and torch's None means 0.
    "F.pad": "value",
    # Two names for one thing.
    "nn.Hardtanh": "min_value",
    # Instance norm keeps no running statistics.
    "nn.InstanceNorm1d": "momentum",
    "nn.InstanceNorm2d": "momentum",
    "F.instance_norm": "running_mean",
    # Only by keyword in torch, and new there: `affine=False` leaves both out.
    "nn.BatchNorm1d": "bias",
    "nn.BatchNorm2d": "bias",
    "nn.GroupNorm": "bias",
    # Only zeros.
    "nn.ConvTranspose1d": "padding_mode",
    "nn.ConvTranspose2d": "padding_mode",
    # Modules by position, or one dict of them.
    "nn.Sequential": "modules",
    # Described by a rule, not by a dict of defaults.
    "optim.Optimizer": "rule",
}


def pairs() -> Iterator[tuple[str, Callable[..., Any], Callable[..., Any]]]:
    """Everything callable that both have."""
    for prefix, ours, theirs in (
        ("nn", nn, torch.nn),
        ("F", F, torch.nn.functional),
        ("init", nn.init, torch.nn.init),
        ("optim", optim, torch.optim),
    ):
        for name in ours.__all__:
            if callable(getattr(ours, name)) and hasattr(theirs, name):
                yield f"{prefix}.{name}", getattr(ours, name), getattr(theirs, name)


def arguments(function: Callable[..., Any], leave: set[str]) -> list[tuple[str, Any]] | None:
    """Names and defaults in order; None if they can't be told (torch's own C functions and wrappers)."""
    target = function.__init__ if inspect.isclass(function) else function
    try:
        found = list(inspect.signature(target).parameters.values())
    except ValueError:
        return None
    found = found[1:] if inspect.isclass(function) else found
    names = [p.name for p in found]
    if names == ["args", "kwargs"]:
        return None
    return [(p.name, p.default) for p in found if p.name not in leave]


@pytest.mark.parametrize(
    ("name", "ours", "theirs"), list(pairs()), ids=lambda value: value if isinstance(value, str) else ""
)
def test_arguments_are_torchs(name: str, ours: Callable[..., Any], theirs: Callable[..., Any]) -> None:
    mine, wanted = arguments(ours, ADDED), arguments(theirs, LEFT_OUT | ADDED)
    if mine is None or wanted is None:
        return
    if name.startswith("optim.") and mine[0] == ("params", None):  # without parameters it is a description
        mine[0] = wanted[0]
    differing = {one[0] for one in set(map(repr_of, mine)) ^ set(map(repr_of, wanted))}
    if name in DIFFERENT:
        assert DIFFERENT[name] in differing, f"{name} is torch's now: take it off the list"
        return
    assert mine == wanted


def repr_of(argument: tuple[str, Any]) -> tuple[str, str]:
    return argument[0], repr(argument[1])
