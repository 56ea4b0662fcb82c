"""torch as an oracle: the same function of the same arrays must give the same values and gradients."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from inspect import signature
from typing import Any

import numpy as np

from psframework import nn
from psframework.autograd import tensor


def assert_equals_torch(
    ours: Callable[..., Any],
    theirs: Callable[..., Any],
    arrays: Mapping[str, np.ndarray],
    **options: Any,
) -> None:
    """Both functions, given float64 tensors over `arrays`, agree in the result and in every gradient to 1e-9.

    Args:
        ours: of psframework.
        theirs: torch's; it takes the same arguments.
        arrays: by argument name.
        options: the other arguments.
    """
    import torch

    our_leaves = {name: tensor(array, True) for name, array in arrays.items()}
    their_leaves = {name: torch.tensor(array, requires_grad=True) for name, array in arrays.items()}
    found, expected = ours(**our_leaves, **options), theirs(**their_leaves, **options)
    np.testing.assert_allclose(found.data, expected.detach().numpy(), rtol=1e-9, atol=1e-9)
    seed = np.linspace(0.5, 1.5, found.size).reshape(found.shape)
    found.backward(seed)
    expected.backward(torch.tensor(seed))
    for name, leaf in our_leaves.items():
        wanted = their_leaves[name].grad.numpy()
        np.testing.assert_allclose(leaf.grad, wanted, rtol=1e-9, atol=1e-9, err_msg=name)


def assert_module_equals_torch(name: str, *args: Any, shape: tuple[int, ...], **options: Any) -> None:
    """torch's module of this name and ours agree: in the names, order and shapes of what they hold, and with
    equal parameters and statistics in the result and in every gradient, to 1e-9.

    Args:
        name: of the class.
        args: of its constructor.
        shape: of the input.
        options: more arguments of the constructor.
    """
    import torch

    kind = getattr(nn, name)
    precise = {"dtype": np.float64} if "dtype" in signature(kind).parameters else {}
    ours, theirs = kind(*args, **options, **precise), getattr(torch.nn, name)(*args, **options).double()
    assert [(key, value.shape) for key, value in ours.named_parameters()] == [
        (key, tuple(value.shape)) for key, value in theirs.named_parameters()
    ]
    assert list(ours.state_dict()) == list(theirs.state_dict())
    rng = np.random.default_rng(0)
    for mine, other in zip(ours.parameters(), theirs.parameters()):
        mine.data = rng.standard_normal(mine.shape)
        other.data = torch.tensor(mine.data)
    for mine, other in zip(ours.buffers(), theirs.buffers()):
        mine[...] = rng.uniform(1, 2, mine.shape)
        other.copy_(torch.tensor(mine))
    _compare(ours, theirs, rng.standard_normal(shape))
    _compare(ours.eval(), theirs.eval(), rng.standard_normal(shape))
    for mine, other in zip(ours.buffers(), theirs.buffers()):
        np.testing.assert_allclose(mine, other.numpy(), rtol=1e-9)


def _compare(ours: Any, theirs: Any, array: np.ndarray) -> None:
    ours.zero_grad()
    theirs.zero_grad()
    assert_equals_torch(_call(ours), _call(theirs), {"x": array})
    for (name, mine), other in zip(ours.named_parameters(), theirs.parameters()):
        np.testing.assert_allclose(mine.grad, other.grad.numpy(), rtol=1e-9, atol=1e-9, err_msg=name)


def _call(module: Any) -> Callable[..., Any]:
    def call(x: Any) -> Any:  # the argument of forward has another name in torch
        return module(x)

    return call
