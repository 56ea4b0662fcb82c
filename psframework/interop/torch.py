"""A torch.nn.Module as a psframework module: torch runs its forward and backward, ours are the parameters."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from psframework import backend, nn
from psframework.autograd import SparseRows, Tensor
from psframework.autograd.record import constant, record_many, recording
from psframework.backend import Array
from psframework.errors import ArgumentError
from psframework.interop.structure import flatten, framework, plant

torch = framework("torch")


def to_torch(array: Array) -> Any:
    """A torch tensor over the memory of `array`; a copy where torch can't have it (read-only, reversed)."""
    if backend.xp(array) is not np:
        return torch.from_dlpack(array)
    array = _viewable(array)
    if array.dtype == backend.bfloat16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def from_torch(tensor: Any) -> Array:
    """An array over the memory of a torch tensor that needs no gradient."""
    if tensor.device.type != "cpu":
        return backend.from_dlpack(tensor)
    tensor = tensor.resolve_conj().resolve_neg()  # what torch has only noted to do
    if tensor.dtype == torch.bfloat16:
        array: Array = tensor.view(torch.int16).numpy()
        return array.view(backend.bfloat16)
    return tensor.numpy()  # type: ignore[no-any-return]


def _viewable(array: Array) -> Array:
    """`array` if torch can have its memory, else a copy."""
    even = all(step >= 0 and step % array.itemsize == 0 for step in array.strides)
    if even and array.flags.writeable and array.dtype.isnative:
        return array
    return np.array(array, dtype=array.dtype.newbyteorder("="), order="C")


@dataclasses.dataclass(slots=True)
class _Link:
    """A parameter or buffer on both sides, under one name, and the array that they share."""

    owner: nn.Module
    name: str
    part: Any
    theirs: Any
    shared: Array | None = None

    def ours(self) -> Any:
        return self.owner.__dict__[self.name]

    def give(self) -> None:
        """Torch's side follows when another array was assigned here: by a move, by a parameter server."""
        ours = self.ours()
        if isinstance(ours, Tensor):
            array = ours.data
            if self.theirs.requires_grad != ours.requires_grad:
                self.theirs.requires_grad = ours.requires_grad
        else:
            array = ours
        if array is self.shared:
            return
        if isinstance(array, np.ndarray):
            array = _viewable(array)
            self._assign(array)
        self.theirs.data = to_torch(array)
        self.shared = array

    def take(self) -> None:
        """Ours follows a buffer that torch's module has replaced in its forward."""
        theirs = None if isinstance(self.ours(), Tensor) else getattr(self.part, self.name)
        if theirs is not None and theirs is not self.theirs:
            self.theirs, self.shared = theirs, from_torch(theirs.detach())
            self._assign(self.shared)

    def _assign(self, array: Array) -> None:
        ours = self.ours()
        if isinstance(ours, Tensor):
            ours.data = array
        else:
            self.owner.__dict__[self.name] = array

    def __deepcopy__(self, memo: dict[int, Any]) -> _Link:
        # A copied array is no view of a copied tensor any more: `give` makes it one.
        owner, part, theirs = (copy.deepcopy(side, memo) for side in (self.owner, self.part, self.theirs))
        return _Link(owner, self.name, part, theirs)


class TorchModule(nn.Module):
    """A torch module with our parameters: train it with our optimizers, parameter servers, DDP.

    Its parameters and buffers are views of torch's, under the same names, in the same order, so state dicts
    fit both ways. What is assigned to a parameter's `data` later (by `to`, a parameter server) is given back
    to torch before the next forward, and so are `requires_grad` and the training mode, which begins as
    torch's.

    Args:
        module: any torch.nn.Module. It is used, not copied. Torch's own random state decides its dropout.

    Raises:
        ArgumentError: `module` is none, it has lazy parameters, or one with a name that modules of ours use.
    """

    def __init__(self, module: Any) -> None:
        if not isinstance(module, torch.nn.Module):
            raise ArgumentError(f"TorchModule takes a torch.nn.Module, not {type(module).__name__}")
        self._torch = module
        self._links: list[_Link] = []
        self.training = module.training
        # Such a module writes over its input, which is somebody else's here: it gets a copy.
        self._in_place = any(getattr(part, "inplace", False) for part in module.modules())
        persistent = set(module.state_dict())
        shared: dict[int, Any] = {}  # what torch has in several places is one object here as well
        for prefix, part in module.named_modules(remove_duplicate=False):
            for path, theirs in part.named_parameters(prefix, recurse=False, remove_duplicate=False):
                if id(theirs) in shared:
                    plant(self, path, shared[id(theirs)])
                    continue
                ours = shared[id(theirs)] = _parameter(path, theirs)
                self._links.append(_Link(*plant(self, path, ours), part, theirs, ours.data))
            for path, theirs in part.named_buffers(prefix, recurse=False, remove_duplicate=False):
                array = shared.setdefault(id(theirs), from_torch(theirs.detach()))
                self._links.append(_Link(*plant(self, path, array, path in persistent), part, theirs, array))

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the torch module answers: Tensors in the place of torch's, wherever they are in it."""
        for link in self._links:
            link.give()
        if self._torch.training != self.training:
            self._torch.train(self.training)
        given, rebuild = flatten((args, kwargs), _is_ours)
        parameters = [link for link in self._links if isinstance(link.ours(), Tensor)]
        sources = (*given, *(link.ours() for link in parameters))
        graph = recording(*sources)
        inputs = [_input(value, graph) for value in given]
        with torch.set_grad_enabled(graph):
            positional, named = rebuild([value.clone() for value in inputs] if self._in_place else inputs)
            result = self._torch(*positional, **named)
        for link in self._links:
            link.take()
        outputs, build = flatten(result, lambda value: isinstance(value, torch.Tensor))
        theirs = [*inputs, *(link.theirs for link in parameters)]
        arrays = _own_memory(outputs, [*inputs, *(link.theirs for link in self._links)])
        return build(_results(type(self._torch).__name__, arrays, outputs, theirs, sources))

    def extra_repr(self) -> str:
        """What stands in the parentheses of the module's repr."""
        return type(self._torch).__name__


def _parameter(path: str, theirs: Any) -> nn.Parameter:
    if torch.nn.parameter.is_lazy(theirs):
        raise ArgumentError(f"{path!r} has no shape yet: run the torch module on a batch first")
    return nn.Parameter(from_torch(theirs.detach()), theirs.requires_grad)


def _is_ours(value: Any) -> bool:
    return isinstance(value, Tensor) or backend.is_array(value)


def _input(value: Tensor | Array, graph: bool) -> Any:
    array = value.data if isinstance(value, Tensor) else value
    made = to_torch(array)
    return made.requires_grad_() if graph and isinstance(value, Tensor) and value.requires_grad else made


def _own_memory(outputs: list[Any], given: list[Any]) -> list[Array]:
    """Arrays of the results. One in the memory of an input, a buffer, another result would change with it."""
    taken = {tensor.untyped_storage().data_ptr() for tensor in given}
    arrays = []
    for out in outputs:
        out = out.detach()
        memory = out.untyped_storage().data_ptr()
        arrays.append(from_torch(out.clone() if memory in taken else out))
        taken.add(memory)
    return arrays


def _results(
    name: str, arrays: list[Array], outputs: list[Any], theirs: list[Any], sources: tuple[Any, ...]
) -> list[Tensor]:
    """Our tensors for torch's results; those that need gradients belong to one node."""
    results = [constant(array) for array in arrays]
    live = [i for i, out in enumerate(outputs) if out.requires_grad and out.is_floating_point()]
    if live:
        rule = _rule([outputs[i] for i in live], theirs)
        # Torch may have kept its results for the backward, and would not see that they were changed here.
        nodes = record_many(name, [arrays[i] for i in live], rule, sources, sources, saves_output=True)
        for i, tensor in zip(live, nodes):
            results[i] = tensor
    return results


def _rule(
    outputs: list[Any], inputs: list[Any]
) -> Callable[[tuple[Array | None, ...]], list[Array | SparseRows | None]]:
    wanted = [i for i, tensor in enumerate(inputs) if tensor.requires_grad]

    def rule(gradients: tuple[Array | None, ...]) -> list[Array | SparseRows | None]:
        pairs = [(out, to_torch(g)) for out, g in zip(outputs, gradients) if g is not None]
        # Torch's graph lives as long as this rule does, which our engine decides.
        found = torch.autograd.grad(
            [out for out, _ in pairs],
            [inputs[i] for i in wanted],
            [seed for _, seed in pairs],
            allow_unused=True,
            retain_graph=True,
        )
        answer: list[Array | SparseRows | None] = [None] * len(inputs)
        for i, gradient in zip(wanted, found):
            answer[i] = None if gradient is None else _gradient(gradient.detach())
        return answer

    return rule


def _gradient(found: Any) -> Array | SparseRows:
    if not found.is_sparse:
        return from_torch(found)
    found = found.coalesce()  # of an embedding: one axis of rows
    return SparseRows(from_torch(found.indices()[0]), from_torch(found.values()), tuple(found.shape), True)
