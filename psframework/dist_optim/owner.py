"""What a distributed optimizer has with each owner of parameters: an optimizer for those that live there."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from sys import getrefcount
from typing import Any, TypeAlias

from psframework.autograd.sparse import SparseRows
from psframework.autograd.tensor import Tensor
from psframework.backend import follow
from psframework.dist_autograd import handle
from psframework.dist_optim.locks import ParameterLocks
from psframework.errors import ArgumentError
from psframework.nn.module import Module
from psframework.optim.blocks import on_device_of
from psframework.optim.clip import GlobalNorm, scale_
from psframework.optim.optimizer import Gradient, Optimizer
from psframework.optim.rule import rule_from_spec
from psframework.rpc.registry import remote
from psframework.rref.handle import RRef

Spec: TypeAlias = Mapping[str, Any]
"""An update rule, as `UpdateRule.spec` describes it."""
Items: TypeAlias = Sequence[tuple[int, Any]]
"""What has parameters, each with its place in the user's list."""


@remote(name="psframework.dist_optim.OwnersOptimizer")
class OwnersOptimizer:
    """Steps the parameters that live in one process. Made there, and called through an RRef.

    A parameter's key is the place of its item in the user's list, then its name if that is a module.

    Args:
        spec: the update rule.
        items: Modules and Tensors, each with its place in the user's list.

    Raises:
        ArgumentError: an item has no parameters that can be stepped.
    """

    def __init__(self, spec: Spec, items: Items) -> None:
        keys: dict[Tensor, str] = {}
        for place, item in items:
            for key, parameter in named_parameters(place, item):
                keys.setdefault(parameter, key)
        self._keys = keys
        self._optimizer = Optimizer([(key, each) for each, key in keys.items()], rule_from_spec(spec))
        self._locks = ParameterLocks(tuple(keys))
        for parameter in keys:
            _take_out(parameter)

    def keys(self) -> list[str]:
        """Keys of the parameters."""
        return list(self._keys.values())

    def powers(self) -> list[float]:
        """The sum of squares of each gradient that the context of this call has here."""
        return [GlobalNorm.of([gradient]).power for gradient in self._gradients().values()]

    def step(self, coefficient: float = 1.0, spec: Spec | None = None) -> None:
        """Applies the gradients of the context of this call.

        Args:
            coefficient: they are multiplied by it first; they themselves stay as they are.
            spec: the rule, unless it is the one that this was made with, or loaded.
        """
        gradients = self._gradients()
        rule = None if spec is None else rule_from_spec(spec)
        with self._locks.held(gradients):
            if coefficient == 1:
                self._optimizer.apply(gradients, rule)
                return
            for parameter, gradient in gradients.items():
                self._optimizer.apply({parameter: _scaled(gradient, coefficient)}, rule)

    def state_dict(self) -> dict[str, dict[str, Any]]:
        """What each parameter that was ever stepped remembers: step count and slots, by key."""
        keys = self.keys()
        with self._locks.held():
            state = self._optimizer.state_dict()["state"]
        return {keys[index]: slots for index, slots in state.items()}

    def load_state_dict(self, state: Mapping[str, Mapping[str, Any]], spec: Spec) -> None:
        """Takes over what `state_dict` returned, and a rule.

        Raises:
            ArgumentError: slots of another shape or name; nothing has been changed then.
        """
        numbers = {key: number for number, key in enumerate(self.keys())}
        groups = [{**spec, "params": list(numbers.values())}]
        loaded = {numbers[key]: slots for key, slots in state.items()}
        with self._locks.held():
            self._optimizer.load_state_dict({"state": loaded, "param_groups": groups})

    def _gradients(self) -> dict[Tensor, Gradient]:
        """Those of the call's context, of parameters here."""
        found = handle.gradients()
        return {each: found[each] for each in self._keys if each in found}


@remote(name="psframework.dist_optim.owners_optimizer")
async def owners_optimizer(spec: Spec, items: Items) -> OwnersOptimizer:
    """The optimizer of this process; items may be RRefs, and their values may still be in the making."""
    values = [
        (place, await item.to_here(timeout=0) if isinstance(item, RRef) else item) for place, item in items
    ]
    return await asyncio.to_thread(follow, OwnersOptimizer, spec, values)


def named_parameters(place: int, item: object) -> Iterator[tuple[str, Tensor]]:
    """The parameters of an item, with their keys.

    Args:
        place: of the item in the user's list.
        item: a Module, or a Tensor.

    Raises:
        ArgumentError: it has none that can be stepped.
    """
    which = f"item {place} of the list"
    if isinstance(item, Module):
        found = [(name, each) for name, each in item.named_parameters() if each.requires_grad]
        if not found:
            raise ArgumentError(f"{which}, a {type(item).__name__}, has no parameters that require grad")
        yield from ((f"{place}.{name}", each) for name, each in found)
    elif isinstance(item, Tensor):
        if not item.requires_grad or not item.is_leaf:
            problem = "was computed from others" if item.requires_grad else "does not require grad"
            raise ArgumentError(f"{which}, a {type(item).__name__}, {problem}: a step can't change it")
        yield str(place), item
    else:
        raise ArgumentError(
            f"{which} has no parameters: it is a {type(item).__name__}. Pass Modules, Parameters, or RRefs "
            "to them"
        )


def _take_out(parameter: Tensor) -> None:
    """Gives a parameter an array of its own, if its array is all that is used of another.

    So it is with `Parameter(np.arange(6.0).reshape(2, 3))`. A part of what others use, too, stays there.
    """
    base = parameter.data.base
    if type(base) is type(parameter.data) and base.base is None and getrefcount(base) <= _ALONE:
        with on_device_of(parameter.data):
            parameter.data = parameter.data.copy()


def _count_of_one() -> int:
    """What getrefcount says of a local variable whose object only one other thing refers to."""
    box = [object()]
    one = box[0]
    return getrefcount(one)


_ALONE = _count_of_one()


def _scaled(gradient: Gradient, coefficient: float) -> Gradient:
    if isinstance(gradient, SparseRows):
        copy: Gradient = gradient.coalesce().copy()
    else:
        with on_device_of(gradient):
            copy = gradient.copy()
    scale_([copy], coefficient)
    return copy
