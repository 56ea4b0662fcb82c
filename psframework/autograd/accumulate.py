"""What a backward leaves behind: gradients added to leaves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np

from psframework import backend
from psframework.autograd.engine import Gradient, Seed, backward
from psframework.autograd.sparse import SparseRows
from psframework.backend import Array

if TYPE_CHECKING:
    from psframework.autograd.traced import Traced


def backward_into_grad(
    roots: Sequence[Traced], seeds: Sequence[Seed] | None = None, retain_graph: bool = False
) -> None:
    """As `backward`, and add what comes out to each leaf's `grad`."""
    deposit_all(backward(roots, seeds, retain_graph=retain_graph))


def deposit_all(found: Mapping[Any, Gradient]) -> None:
    """As `deposit`, for each leaf."""
    with _depositing:
        for leaf, gradient in found.items():
            deposit(leaf, gradient)


_depositing = Lock()  # threads may share leaves: an addition to `grad` must not be lost


def deposit(leaf: Traced, gradient: Gradient) -> None:
    """Add `gradient` to `leaf.grad`, or to its buffer; the array passes to the leaf."""
    total, buffer = leaf._grad, leaf.grad_buffer
    if buffer is not None:
        if total is None:
            if isinstance(gradient, SparseRows):
                buffer[...] = 0
                gradient.add_to(buffer)
            elif gradient is not buffer:  # which was offered, and claimed
                buffer[...] = gradient
        elif total is buffer:
            _add_into(buffer, gradient)
        else:
            buffer[...] = total.to_dense() if isinstance(total, SparseRows) else total
            _add_into(buffer, gradient)
        leaf._grad = buffer
    elif total is None:
        leaf._grad = gradient
    else:
        leaf._grad = added(total, gradient)


def added(total: Gradient, gradient: Gradient) -> Gradient:
    """The sum of two gradients of one leaf; in the array of `total`, if that may be changed."""
    if isinstance(total, SparseRows):
        both = total + gradient
        return both.coalesce() if isinstance(both, SparseRows) else both
    if isinstance(total, np.ndarray) and not total.flags.writeable:  # devices have no such arrays
        return backend.as_array(gradient + total)
    _add_into(total, gradient)
    return total


def _add_into(total: Array, gradient: Gradient) -> None:
    if isinstance(gradient, SparseRows):
        gradient.add_to(total)
    else:
        total += gradient
