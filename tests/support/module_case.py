"""One way to make one module: what `tests/nn/test_every_module.py` puts every class of `psf.nn` through."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from psframework import nn

Array = np.ndarray


@dataclass(frozen=True)
class ModuleCase:
    """One configuration of a module, with inputs for it.

    Args:
        name: of the case: the class's name in `psf.nn`, and after a colon what is special.
        make: called with `dtype`, answers a fresh module (random initial values are fine).
        inputs: float64 arrays, a few elements each; they are differentiated, in the dtype of the module.
        constants: arrays of integers or booleans, which follow the inputs and go to the device with them.
        covers: the classes that this case exercises; the part of `name` before the colon if empty.
        call: how the module is used, if not `module(*inputs, *constants)`.
        narrow: allowed error of a float16 module, in epsilons times the largest result; None to leave it out.
        random: whether two calls differ (dropout in training): then only shapes are compared.
        tolerance: of gradcheck.
    """

    name: str
    make: Callable[..., nn.Module]
    inputs: Sequence[Array]
    constants: Sequence[Array] = ()
    covers: tuple[str, ...] = ()
    call: Callable[..., Any] | None = None
    narrow: float | None = 32
    random: bool = False
    tolerance: float = 1e-6

    @property
    def names(self) -> tuple[str, ...]:
        """The classes that this case exercises."""
        return self.covers or (self.name.partition(":")[0],)

    def run(self, module: nn.Module, inputs: Sequence[Any], constants: Sequence[Any]) -> Any:
        """The module's result."""
        return (self.call or type(module).__call__)(module, *inputs, *constants)

    def __repr__(self) -> str:
        return self.name
