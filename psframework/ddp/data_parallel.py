"""`psf.DataParallel`: one process computes a batch on several devices, a thread for each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate, pairwise
from typing import Any

from psframework.autograd.engine import Gradient, grad
from psframework.autograd.grad_mode import is_grad_enabled
from psframework.autograd.record import as_tensor, constant, record_many
from psframework.autograd.sparse import SparseRows
from psframework.autograd.tensor import Tensor
from psframework.backend import (
    Array,
    Device,
    as_array,
    device,
    device_of,
    is_array,
    is_floating,
    to_device,
    xp,
)
from psframework.collective.algorithms import bounds
from psframework.ddp.replicas import Replicas, added, apart, cut
from psframework.errors import ArgumentError
from psframework.interop.structure import flatten
from psframework.nn.module import Module


class DataParallel(Module):
    """A module that computes each batch in parts, on several devices at once.

        model = psf.DataParallel(model.to("cuda:0"), ["cuda:0", "cuda:1"])
        F.cross_entropy(model(x), y).backward()

    Each call copies the parameters to the other devices, cuts the rows of all arrays among its arguments,
    runs a replica on each part, in a thread each, and joins the rows of the results on the first device.
    Backward runs in the same threads, and adds up what the replicas found, so gradients are those of the
    whole batch (the order of additions aside). A result without axes, such as a mean loss, becomes the mean
    weighted by rows.

    DistributedDataParallel is faster: here threads share one interpreter, parameters are copied in each step,
    and the first device does the rest of the work alone.

    As in torch, running statistics are those of the first part. Each replica draws dropout masks of its own.

    Args:
        module: on the first device. It must not get or lose parameters or submodules afterwards.
        devices: where to compute; one may be named several times, as `["cpu", "cpu"]`.

    Raises:
        ArgumentError: there is no device, or the module is not on the first one.
    """

    def __init__(self, module: Module, devices: Sequence[str | Device]) -> None:
        if not isinstance(module, Module):
            raise ArgumentError(f"DataParallel wraps an nn.Module, not {type(module).__name__}")
        if not devices:
            raise ArgumentError("DataParallel needs at least one device")
        self.module = module
        places = [device(each) for each in devices]
        for name, parameter in module.named_parameters():
            where = device_of(parameter.data)
            if where != places[0]:
                raise ArgumentError(f"{name} is on {where}: move the module to {places[0]}, the first device")
        self._replicas = Replicas(module, places)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the replicas."""
        given, rebuild = flatten([args, kwargs], _has_rows)
        rows = {each.shape[0] for each in given}
        if len(rows) > 1:
            raise ArgumentError(f"arguments have {sorted(rows)} rows: all are cut, so all need as many")
        count = min(len(self._replicas.devices), *rows) if rows else 1
        if count <= 1:
            return self.module(*args, **kwargs)
        self._replicas.follow(count)
        borders = bounds(rows.pop(), count)
        call = _Call(self._replicas, given, borders)
        return call.answer([partial(self._one, rank, rebuild, call.parts[rank]) for rank in range(count)])

    def _one(self, rank: int, rebuild: Callable[[Sequence[Any]], Any], part: list[Any]) -> Any:
        args, kwargs = rebuild(part)
        return self._replicas.modules[rank](*args, **kwargs)


class _Call:
    """One forward on all replicas, and its backward.

    Attributes:
        parts: for each replica, its part of each array or tensor among the arguments.
    """

    def __init__(self, replicas: Replicas, given: Sequence[Any], borders: Sequence[int]) -> None:
        self._replicas, self._borders = replicas, borders
        wanted = is_grad_enabled()
        self._given = [each for each in given if wanted and isinstance(each, Tensor) and each.requires_grad]
        count = len(borders) - 1
        cuts = [cut(each.data if isinstance(each, Tensor) else each, borders) for each in given]
        self.parts: list[list[Any]] = [
            [_part(each, own[rank], replicas.devices[rank]) for each, own in zip(given, cuts)]
            for rank in range(count)
        ]
        # What each replica finds gradients for.
        self._leaves = [
            [*parameters, *(each for each in part if isinstance(each, Tensor) and each.requires_grad)]
            for parameters, part in zip(replicas.parameters, self.parts)
        ]
        self._outputs: list[list[Tensor]] = []

    def answer(self, calls: Sequence[Callable[[], Any]]) -> Any:
        """What the replicas answer to the calls, joined."""
        answers = self._replicas.run(apart(calls))
        flat = [flatten(answer, _is_result) for answer in answers]
        outputs, rebuild = [found for found, _ in flat], flat[0][1]
        if len({len(each) for each in outputs}) > 1:
            raise ArgumentError("replicas answered different numbers of tensors")
        arrays = [is_array(each) for each in outputs[0]]
        self._outputs = [[as_tensor(each, "DataParallel") for each in found] for found in outputs]
        joined = [self._joined([each.data for each in parts]) for parts in zip(*self._outputs)]
        if any(each.requires_grad for found in self._outputs for each in found):
            inputs = (*self._replicas.parameters[0], *self._given)
            results = record_many("DataParallel", joined, self._backward, inputs, tuple(self._given))
        else:
            results = tuple(constant(array) for array in joined)
        return rebuild([each.data if plain else each for each, plain in zip(results, arrays)])

    def _joined(self, parts: Sequence[Array]) -> Array:
        """Rows of all replicas on the first device; of results without axes, the mean weighted by rows."""
        here = [to_device(part, self._replicas.devices[0]) for part in parts]
        namespace = xp(here[0])
        if here[0].ndim:
            return as_array(namespace.concatenate(here))
        if not is_floating(here[0].dtype):
            raise ArgumentError(f"a result without axes is averaged, so it can't be of {here[0].dtype}")
        terms = [part * weight for part, weight in zip(here, self._weights())]
        return as_array(namespace.stack(terms).sum(dtype=here[0].dtype))

    def _weights(self) -> list[float]:
        return [(stop - start) / self._borders[-1] for start, stop in pairwise(self._borders)]

    def _backward(self, gradients: Sequence[Array | None]) -> list[Gradient | None]:
        """Gradients of the module's parameters, then of the arguments that require grad."""
        seeds = [self._seeds(i, gradient) for i, gradient in enumerate(gradients)]
        calls = [
            partial(_gradients, outputs, [each[rank] for each in seeds], leaves)
            for rank, (outputs, leaves) in enumerate(zip(self._outputs, self._leaves))
        ]
        found = self._replicas.run(calls)
        count = len(found[0]) - len(self._given)
        first = self._replicas.devices[0]
        own = [added([each[i] for each in found], first) for i in range(count)]
        return [*own, *(self._rows(i, found) for i in range(-len(self._given), 0))]

    def _seeds(self, number: int, gradient: Array | None) -> list[Array | None]:
        """For each replica, the gradient of its part of a result."""
        outputs = [each[number] for each in self._outputs]
        if gradient is None:
            return [None] * len(outputs)
        if not gradient.ndim:
            parts = [as_array(gradient * weight) for weight in self._weights()]
        else:
            borders = [0, *accumulate(output.shape[0] for output in outputs)]
            parts = cut(gradient, borders)
        return [
            to_device(part.astype(output.dtype, copy=False), place) if output.requires_grad else None
            for part, output, place in zip(parts, outputs, self._replicas.devices)
        ]

    def _rows(self, number: int, found: Sequence[Sequence[Gradient | None]]) -> Array:
        """The gradient of an argument, from those of its parts."""
        whole = self._given[number].data
        gradient: Array = xp(whole).zeros(whole.shape, whole.dtype)
        for view, each in zip(cut(gradient, self._borders), found):
            part = each[number]
            if part is not None:
                dense = part.to_dense() if isinstance(part, SparseRows) else part
                view[...] = to_device(dense, device_of(whole))
        return gradient


def _gradients(
    outputs: Sequence[Tensor], seeds: Sequence[Array | None], leaves: Sequence[Tensor]
) -> Sequence[Gradient | None]:
    """Of one replica. Its graph is kept: it goes with the node that this is the backward of."""
    pairs = [(output, seed) for output, seed in zip(outputs, seeds) if seed is not None]
    if not pairs:
        return [None] * len(leaves)
    roots, given = zip(*pairs)
    return grad(list(roots), list(leaves), list(given), retain_graph=True, allow_unused=True)


def _is_result(value: Any) -> bool:
    return isinstance(value, Tensor) or is_array(value)


def _has_rows(value: Any) -> bool:
    return _is_result(value) and value.ndim > 0


def _part(given: Any, rows: Array, place: Device) -> Any:
    """What a replica gets of an argument: a leaf of its own graph if a gradient is wanted."""
    rows = to_device(rows, place)
    if not isinstance(given, Tensor):
        return rows
    return Tensor(rows, requires_grad=True) if given.requires_grad and is_grad_enabled() else constant(rows)
