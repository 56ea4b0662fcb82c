"""Copies of a module on several devices, each run by a thread."""

from __future__ import annotations

import contextvars
import copy
import itertools
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np

from psframework.autograd.engine import Gradient
from psframework.autograd.sparse import SparseRows
from psframework.autograd.tensor import Tensor
from psframework.backend import Array, Device, follow, to_device
from psframework.nn.module import Module
from psframework.nn.random import drawing_from, generator

T = TypeVar("T")


class Replicas:
    """A module, and a copy of it for each further device. The copies follow the module's values.

    Args:
        module: the first replica, on the first device.
        devices: one for each replica; a device may come several times.

    Attributes:
        modules: the replicas.
        parameters: of each replica, those of the module that require grad, in its order.
    """

    def __init__(self, module: Module, devices: Sequence[Device]) -> None:
        self.devices = devices
        self.modules = [module, *(_copy(module, device) for device in devices[1:])]
        self.parameters: list[list[Tensor]] = []
        self._pool = ThreadPoolExecutor(max(1, len(devices) - 1), "psf-replica")
        weakref.finalize(self, self._pool.shutdown, wait=False)

    def follow(self, count: int) -> None:
        """Gives the first `count` replicas the module's values, mode, and choice of what requires grad."""
        first, *others = self.modules[:count]
        self.parameters = [list(first.parameters())]
        for replica, device in zip(others, self.devices[1:]):
            for mine, theirs in zip(replica.modules(), first.modules()):
                mine.training = theirs.training
            pairs = list(zip(replica.parameters(), first.parameters(), strict=True))
            for own, source in pairs:
                own.data = to_device(source.data, device)
                own.requires_grad = source.requires_grad
            for (_, buffer), (_, value) in zip(replica.named_buffers(), first.named_buffers(), strict=True):
                buffer[...] = to_device(value, device)
            self.parameters.append([own for own, _ in pairs])
        self.parameters = [[p for p in own if p.requires_grad] for own in self.parameters]

    def run(self, calls: Sequence[Callable[[], T]]) -> list[T]:
        """Runs call r for replica r, all at once, on its device; the first in the thread that calls this.

        Raises:
            Exception: what the first of them that failed raised, once all have ended.
        """
        runs = [_Run(call, device) for call, device in zip(calls, self.devices)]
        futures = [self._pool.submit(contextvars.copy_context().run, run) for run in runs[1:]]
        waits: list[Callable[[], Any]] = [runs[0], *(future.result for future in futures)]
        outcomes: list[Any] = []
        for rank, wait in enumerate(waits):
            try:
                outcomes.append(wait())
            except Exception as error:
                error.add_note(f"in replica {rank} on {self.devices[rank]}")
                outcomes.append(error)
        for outcome in outcomes:
            if isinstance(outcome, Exception):
                raise outcome
        return outcomes


class _Run:
    """A call on a device."""

    def __init__(self, call: Callable[[], Any], device: Device) -> None:
        self._call, self._device = call, device

    def __call__(self) -> Any:
        with self._device:
            return follow(self._call)


def _copy(module: Module, device: Device) -> Module:
    """A replica; arrays that it gets anew before each run are not copied here."""
    memo: dict[int, Any] = {}
    for parameter in module.parameters():
        memo[id(parameter)] = type(parameter)(to_device(parameter.data, device), parameter.requires_grad)
    for buffer in module.buffers():
        memo[id(buffer)] = to_device(buffer, device).copy()
    return copy.deepcopy(module, memo)


def apart(calls: Sequence[Callable[[], T]]) -> list[Callable[[], T]]:
    """The calls, each of which draws random numbers of its own: what it draws depends on no other thread."""
    seeds = generator().integers(0, 1 << 63, size=len(calls)).tolist()

    def drawing(call: Callable[[], T], seed: int) -> Callable[[], T]:
        def run() -> T:
            with drawing_from(np.random.default_rng(seed)):
                return call()

        return run

    return [drawing(call, seed) for call, seed in zip(calls, seeds)]


def moved(gradient: Gradient, device: Device) -> Gradient:
    """A gradient on another device."""
    if isinstance(gradient, SparseRows):
        rows, values = to_device(gradient.rows, device), to_device(gradient.values, device)
        return SparseRows(rows, values, gradient.shape, gradient.coalesced)
    return to_device(gradient, device)


def added(gradients: Sequence[Gradient | None], device: Device) -> Gradient | None:
    """Their sum on a device, in their order; None if there are none."""
    total: Any = None
    for gradient in gradients:
        if gradient is not None:
            here = moved(gradient, device)
            total = here if total is None else total + here
    return total.coalesce() if isinstance(total, SparseRows) else total


def cut(array: Array, borders: Sequence[int]) -> list[Array]:
    """Rows of an array between borders."""
    return [array[start:stop] for start, stop in itertools.pairwise(borders)]
