"""The client's memory of a model: parameters and gradients in flat arenas that shards read and write.

Parameters on a GPU stay there, and are copied from and to the arenas.

There are two arenas of values: a pull fills the one that is not in use, and then every parameter is pointed
to it. There are two of gradients: while one is on its way, backward writes into the other.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from psframework.autograd.sparse import SparseRows
from psframework.autograd.tensor import Tensor
from psframework.backend import Array, array_like, asnumpy, dtype_from_name, dtype_name
from psframework.errors import ArgumentError
from psframework.parameter_server.layout import Layout, ParameterSpec
from psframework.parameter_server.partition import Partition
from psframework.wire.compress import Compression, narrow
from psframework.wire.memory import Buffer
from psframework.wire.shm import Segment

PAGE = 4096


class Arena:
    """Bytes of one set of values or gradients.

    Args:
        memory: the bytes.
        offset: of its first byte in the shared segment, if it lies in one.
        layout: where each parameter is.
    """

    def __init__(self, memory: Array, offset: int, layout: Layout) -> None:
        self.memory = memory
        self.offset = offset
        self.views = [
            memory[f.offset : f.offset + f.spec.nbytes]
            .view(dtype_from_name(f.spec.dtype))
            .reshape(f.spec.shape)
            for f in layout.fields
        ]

    def part(self, partition: Partition) -> memoryview:
        """The bytes of one partition, shared."""
        return self.memory[partition.offset : partition.stop].data

    def narrowed(self, partition: Partition, method: Compression) -> Buffer:
        """The bytes of one partition as they travel."""
        values = self.memory[partition.offset : partition.stop].view(dtype_from_name(partition.dtype))
        return narrow(values, method).view(np.uint8).data


class ModelMemory:
    """The arenas of one model, bound to its parameters.

    Args:
        parameters: (name, Tensor), in order.
        shared: whether to lie in a segment that shards can map.

    Attributes:
        layout: where each parameter is in an arena.
        segment: the shared memory; None if not shared.
    """

    def __init__(self, parameters: Sequence[tuple[str, Tensor]], *, shared: bool) -> None:
        self.layout = Layout.of(parameter_specs(parameters))
        by_name = dict(parameters)
        self._tensors = [by_name[field.spec.name] for field in self.layout.fields]
        stride = -(-self.layout.nbytes // PAGE) * PAGE
        self.segment = Segment.create(4 * stride) if shared else None
        if self.segment is not None:
            self.segment.touch()  # so that the first step does not wait for the kernel to map it
        whole: Array = (
            np.frombuffer(self.segment.buffer, np.uint8) if self.segment else np.zeros(4 * stride, np.uint8)
        )
        arenas = [
            Arena(whole[begin : begin + self.layout.nbytes], begin, self.layout)
            for begin in range(0, 4 * stride, stride)
        ]
        self._values, self._gradients = arenas[:2], arenas[2:]
        self._in_use = 0
        self._filling = 0

    @property
    def values(self) -> Arena:
        """The values that the parameters have."""
        return self._values[self._in_use]

    @property
    def spare(self) -> Arena:
        """The values that a pull fills."""
        return self._values[1 - self._in_use]

    @property
    def side(self) -> int:
        """Which arena `spare` is, 0 or 1."""
        return 1 - self._in_use

    def bind(self) -> None:
        """Moves the parameters into the arena; gradients accumulate in it from now on."""
        for tensor, view in zip(self._tensors, self.values.views):
            view[...] = asnumpy(tensor.data)
        self._point()
        self._collect_into(self._filling)

    def swap(self) -> None:
        """Points every parameter to the values that were filled."""
        if self._tensors:  # not released meanwhile
            self._in_use = 1 - self._in_use
            self._point()

    def take(self) -> tuple[Arena, frozenset[int]]:
        """Takes the gradients: afterwards every `grad` is None, and the other arena collects.

        Returns:
            The arena with the gradients, and which parameters (by their place in the layout) have one; what
            is in the place of the others must be cleared if it is sent.
        """
        arena = self._gradients[self._filling]
        present = set()
        for index, (tensor, view) in enumerate(zip(self._tensors, arena.views)):
            gradient = tensor.grad
            if gradient is None:
                continue
            if gradient is not view:
                dense = gradient.to_dense() if isinstance(gradient, SparseRows) else gradient
                view[...] = asnumpy(dense)
            tensor.grad = None
            present.add(index)
        self._filling = 1 - self._filling
        self._collect_into(self._filling)
        return arena, frozenset(present)

    def release(self) -> None:
        """Leaves parameters and gradients as they are, in memory of their own; the arenas go."""
        for index, tensor in enumerate(self._tensors):
            tensor.grad_buffer = None
            if tensor.data is self.values.views[index]:
                tensor.data = tensor.data.copy()
            gradient = tensor.grad
            if gradient is not None and any(gradient is arena.views[index] for arena in self._gradients):
                tensor.grad = gradient.copy()
        self._tensors, self._values, self._gradients = [], [], []
        if self.segment is not None:
            self.segment.close()  # what still looks at it keeps it

    def _point(self) -> None:
        for tensor, view in zip(self._tensors, self.values.views):
            tensor.data = view if _on_host(tensor.data) else array_like(view, tensor.data)

    def _collect_into(self, number: int) -> None:
        for tensor, view in zip(self._tensors, self._gradients[number].views):
            if _on_host(tensor.data):  # those of a device are copied when they are taken
                tensor.grad_buffer = view


def parameter_specs(parameters: Sequence[tuple[str, Tensor]]) -> tuple[ParameterSpec, ...]:
    """Names, dtypes and shapes of parameters."""
    for name, tensor in parameters:
        if tensor.node is not None:
            raise ArgumentError(f"parameter {name!r} was computed from other tensors")
    return tuple(ParameterSpec(name, dtype_name(t.data.dtype), tuple(t.shape)) for name, t in parameters)


def _on_host(array: Array) -> bool:
    return isinstance(array, np.ndarray)
