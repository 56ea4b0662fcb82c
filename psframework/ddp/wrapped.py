"""Which models are wrapped, and by whom: a model has one wrapper at a time."""

from __future__ import annotations

from typing import Protocol
from weakref import WeakKeyDictionary, ref

from psframework.collective.group import ProcessGroup
from psframework.ddp.reducer import Reducer
from psframework.errors import ArgumentError
from psframework.nn import Module


class Wrapper(Protocol):
    """What wraps a model."""

    module: Module
    group: ProcessGroup
    closed: bool


# Who wraps a model, and whose buckets its gradients are in.
_wrapped: WeakKeyDictionary[Module, tuple[ref[Wrapper], Reducer]] = WeakKeyDictionary()


def take_over(wrapper: Wrapper, reducer: Reducer) -> None:
    """From now on the model is this wrapper's; an older one must be closed, gone, or its group lost.

    Raises:
        ArgumentError: somebody else still has the model, or its gradients.
    """
    module = wrapper.module
    if module in _wrapped:
        known, buckets = _wrapped[module]
        older = known()
        if older is not None and not older.closed:
            if older.group.error is None:
                raise ArgumentError(
                    "the model is wrapped by another DistributedDataParallel: await its close() first"
                )
            older.closed = True
        buckets.release()
    for name, parameter in module.named_parameters():
        if parameter.grad_buffer is not None:
            raise ArgumentError(
                f"the gradient of {name!r} lives in a buffer of somebody else, such as a parameter server: "
                "close that first"
            )
    _wrapped[module] = ref(wrapper), reducer


def give_back(module: Module) -> None:
    """The model has no wrapper any more."""
    del _wrapped[module]
