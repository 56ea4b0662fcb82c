"""The parameters of one stage: their gradients, their update, and what a commit holds of them. No I/O."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from sys import getrefcount
from typing import Any

import numpy as np

from psframework.autograd.accumulate import deposit_all
from psframework.autograd.anomaly import detector
from psframework.autograd.engine import ALONE
from psframework.autograd.offers import offering, summing
from psframework.autograd.sparse import SparseRows
from psframework.autograd.traced import Traced
from psframework.backend import Array, widen
from psframework.errors import ArgumentError
from psframework.nn.module import Module
from psframework.nn.parameter import Parameter
from psframework.optim.clip import GlobalNorm
from psframework.optim.optimizer import Gradient, Optimizer
from psframework.optim.rule import UpdateRule


class Learning:
    """What a stage learns with.

    Gradients of 16-bit parameters are summed over micro-batches in float32; so are those parameters updated.

    Args:
        module: of the stage.
        rule: updates its parameters; None: somebody else does, or nobody.

    Attributes:
        parameters: those that are trained, by name.
    """

    def __init__(self, module: Module, rule: UpdateRule | None) -> None:
        self._module = module
        named = {name: each for name, each in module.named_parameters() if each.requires_grad}
        self.parameters: dict[str, Parameter] = named
        self._spare: dict[Traced, Array] = {}  # arrays that were gradients
        self._apart: set[Traced] = set()  # whose gradients come in memory of their own in any case
        self._optimizer = Optimizer(named.items(), rule) if rule is not None and named else None

    def named(self, name: str) -> Array:
        """The values of a parameter.

        Raises:
            ArgumentError: there is none of that name.
        """
        if name not in self.parameters:
            raise ArgumentError(
                f"no parameter {name!r} that is trained is in {type(self._module).__name__}, which has "
                f"{', '.join(self.parameters) or 'none'}"
            )
        return self.parameters[name].data

    @contextmanager
    def summing(self) -> Iterator[None]:
        """While it lasts, a backward may add gradients to those that are there, rather than answer them.

        Those that begin a sum may take the memory of one that was forgotten: fresh pages cost more than the
        product that goes there.
        """
        open_ones = [each for each in self.parameters.values() if not each.leaf_hooks and detector() is None]
        totals: dict[Traced, Any] = {each: each.grad for each in open_ones if _own(each)}
        places: dict[Traced, Array] = {
            each: self._spare.pop(each) for each in open_ones if each.grad is None and each in self._spare
        }
        with summing(totals), offering(places):
            yield
        self._spare.update(places)  # what nobody took

    def add(self, found: Mapping[Any, Gradient]) -> None:
        """Adds what a backward found to the gradients."""
        for leaf in self._spare.keys() & found.keys():  # no rule takes it, so it would only be held
            del self._spare[leaf]
            self._apart.add(leaf)
        deposit_all({leaf: _wide(gradient) for leaf, gradient in found.items()})

    def forget(self) -> None:
        """Forgets the gradients."""
        own = {each: each.grad for each in self.parameters.values() if _own(each) and each not in self._apart}
        self._module.zero_grad()
        # Added: a step forgets when it ends, and the next one again when it begins.
        self._spare.update({each: own[each] for each in own if getrefcount(own[each]) <= ALONE})

    def power(self, without: Collection[str] = ()) -> float:
        """The sum of squares of all gradients, in double precision; not finite if one of them is not.

        Args:
            without: names of parameters that count elsewhere.
        """
        found = [each.grad for name, each in self.parameters.items() if name not in without]
        return GlobalNorm.of([gradient for gradient in found if gradient is not None]).power

    def scale(self, coefficient: float) -> None:
        """Multiplies all gradients."""
        if coefficient == 1.0:
            return
        for parameter in self.parameters.values():
            if parameter.grad is not None:
                parameter.grad = parameter.grad * coefficient

    def step(self) -> None:
        """Updates the parameters by their gradients, and forgets these."""
        if self._optimizer is not None:
            self._optimizer.step()
        self.forget()

    def snapshot(self) -> dict[str, Any]:
        """All that a step changes, as copies: parameters, buffers, and what the optimizer remembers."""
        optimizer = None if self._optimizer is None else self._optimizer.state_dict()
        return {"module": self._module.state_dict(), "optimizer": optimizer}

    def restore(self, snapshot: Mapping[str, Any]) -> None:
        """Goes back to a snapshot."""
        self.forget()
        self._module.load_state_dict(snapshot["module"])
        if self._optimizer is not None:
            self._optimizer.load_state_dict(snapshot["optimizer"])


def dense(gradient: Gradient) -> Array:
    """A gradient as an array."""
    return gradient.to_dense() if isinstance(gradient, SparseRows) else gradient


def _own(parameter: Parameter) -> bool:
    """Whether it has a gradient that is an array of its own."""
    array = parameter.grad
    plain = type(array) is np.ndarray and array.dtype == parameter.dtype
    return plain and array.flags.carray and array.flags.owndata


def _wide(gradient: Gradient) -> Gradient:
    if not isinstance(gradient, SparseRows):
        return widen(gradient)
    wide = widen(gradient.values)
    if wide is gradient.values:
        return gradient
    return SparseRows(gradient.rows, wide, gradient.shape, gradient.coalesced)
