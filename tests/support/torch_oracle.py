"""torch as an oracle: the same function of the same arrays must give the same values and gradients."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

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
