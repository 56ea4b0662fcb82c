"""Compare derivatives with central differences."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from psframework.autograd import SparseRows, Tensor, backward, no_grad
from psframework.backend import Array
from psframework.errors import ArgumentError


def gradcheck(
    function: Callable[..., Tensor],
    inputs: Sequence[Any],
    *,
    step: float = 1e-6,
    tolerance: float = 1e-6,
    seed: int = 0,
) -> float:
    """Check the gradient of `function` with respect to every float64 array among `inputs`.

    The output is weighted by random numbers, so that every element of the Jacobian takes part, and each input
    element is moved by `step` both ways.

    Args:
        function: takes the inputs, with arrays turned into tensors, and returns one tensor. It has to be
            deterministic.
        inputs: float64 arrays of any strides, writeable and over memory of their own; anything else, also
            Tensors, is passed on as it is.
        step: of the differences.
        tolerance: largest allowed error, relative to numbers above 1 and absolute below.
        seed: of the random weights.

    Returns:
        The largest error.

    Raises:
        AssertionError: an error above `tolerance`, or a gradient of another shape or dtype.
        ArgumentError: no float64 array among `inputs`, or one that can't be moved by itself; or `function`
            answers no tensor.
    """
    leaves = {i: Tensor(value, True) for i, value in enumerate(inputs) if _is_checked(value)}
    if not leaves:
        raise ArgumentError("gradcheck: no float64 array among the inputs")
    _check_memory({i: leaf.data for i, leaf in leaves.items()})
    arguments = [leaves.get(i, value) for i, value in enumerate(inputs)]
    out = function(*arguments)
    if not isinstance(out, Tensor):
        raise ArgumentError(f"gradcheck: the function must answer one tensor, not {type(out).__name__}")
    weights = np.random.default_rng(seed).uniform(0.5, 1.5, out.shape)
    found = backward([out], [weights])
    worst = 0.0
    for position, leaf in leaves.items():
        gradient: Any = found.get(leaf, np.zeros(leaf.shape))
        gradient = gradient.to_dense() if isinstance(gradient, SparseRows) else gradient
        expected = _differences(lambda: _weighted(function, arguments, weights), leaf.data, step)
        worst = max(worst, _compare(position, gradient, expected, tolerance))
    return worst


def _is_checked(value: object) -> bool:
    return isinstance(value, np.ndarray) and value.dtype == np.float64


def _check_memory(arrays: dict[int, Array]) -> None:
    """Each element is moved in place, so it must be nobody else's."""
    for position, array in arrays.items():
        if not array.flags.writeable:
            raise ArgumentError(f"gradcheck: input {position} is read-only: give a copy")
        for other, earlier in arrays.items():
            if other < position and np.shares_memory(array, earlier):
                raise ArgumentError(f"gradcheck: inputs {other} and {position} share memory: give a copy")


def _weighted(function: Callable[..., Tensor], arguments: Sequence[Any], weights: Array) -> float:
    with no_grad():
        return float((function(*arguments).data * weights).sum())


def _differences(evaluate: Callable[[], float], array: Array, step: float) -> Array:
    """Derivative of `evaluate()` with respect to each element of `array`, moved in place and restored."""
    result = np.zeros(array.shape)
    for place in np.ndindex(array.shape):
        value = array[place].copy()
        try:
            array[place] = value + step
            above = evaluate()
            array[place] = value - step
            below = evaluate()
        finally:
            array[place] = value
        result[place] = (above - below) / (2 * step)
    return result


def _compare(position: int, gradient: Array, expected: Array, tolerance: float) -> float:
    assert gradient.shape == expected.shape, f"input {position}: {gradient.shape} instead of {expected.shape}"
    assert gradient.dtype == expected.dtype, f"input {position}: dtype {gradient.dtype}"
    if not expected.size:
        return 0.0
    errors = np.abs(gradient - expected) / np.maximum(1, np.abs(expected))
    worst = float(np.nan_to_num(errors, nan=np.inf).max())
    assert worst <= tolerance, (
        f"input {position}: error {worst:.2e}\ngradient {gradient}\nexpected {expected}"
    )
    return worst
