"""A module of ours against torch's: the same weights and inputs, the same results and gradients."""

from typing import Any

import numpy as np

from psframework import nn


def flat(result: Any) -> list[Any]:
    """The tensors in nested tuples."""
    return [t for part in result for t in flat(part)] if isinstance(result, tuple) else [result]


def twin(torch: Any, ours: nn.Module, *args: Any, **options: Any) -> Any:
    """torch's module of the same class and weights; loading fails if names or shapes differ."""
    theirs = getattr(torch.nn, type(ours).__name__)(*args, dtype=torch.float64, **options)
    theirs.load_state_dict({name: torch.tensor(value) for name, value in ours.state_dict().items()})
    return theirs


def agree(ours: nn.Module, theirs: Any, inputs: Any, their_inputs: Any, outs: Any, expected: Any) -> None:
    """Compares results, then the gradients of inputs and parameters for varied weights of the results."""
    outs, expected = flat(outs), flat(expected)
    for out, wanted in zip(outs, expected, strict=True):
        np.testing.assert_allclose(out.data, wanted.detach().numpy(), rtol=1e-9, atol=1e-12)
    weights = [np.random.default_rng(i).standard_normal(out.shape) for i, out in enumerate(outs)]
    sum((out * weight).sum() for out, weight in zip(outs, weights)).backward()
    sum((out * out.new_tensor(weight)).sum() for out, weight in zip(expected, weights)).backward()
    for leaf, other in zip(flat(inputs), flat(their_inputs), strict=True):
        np.testing.assert_allclose(leaf.grad, other.grad.numpy(), rtol=1e-9, atol=1e-11)
    for name, parameter in ours.named_parameters():
        wanted = theirs.get_parameter(name).grad.numpy()
        np.testing.assert_allclose(parameter.grad, wanted, rtol=1e-9, atol=1e-11, err_msg=name)
