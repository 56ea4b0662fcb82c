"""A torch.nn.Module as a psframework module: torch runs its forward and backward, ours are the parameters."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from psframework import backend, nn
from psframework.autograd import Tensor
from psframework.autograd.record import constant, record_many, recording
from psframework.backend import Array
from psframework.errors import ArgumentError
from psframework.interop.structure import flatten, framework, home, plant

torch = framework("torch")


def to_torch(array: Array) -> Any:
    """A torch tensor over the memory of `array`; a copy where torch can't have it (read-only, reversed)."""
    if not isinstance(array, np.ndarray):
        return torch.from_dlpack(array)
    if not _viewable(array):
        array = array.copy()
    if array.dtype == backend.bfloat16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def from_torch(tensor: Any) -> Array:
    """An array over the memory of a torch tensor that needs no gradient."""
    if tensor.device.type != "cpu":
        return backend.from_dlpack(tensor)
    if tensor.dtype == torch.bfloat16:
        array: Array = tensor.view(torch.int16).numpy()
        return array.view(backend.bfloat16)
    return tensor.numpy()  # type: ignore[no-any-return]


def _viewable(array: Array) -> bool:
    return array.flags.writeable and all(step >= 0 for step in array.strides)


@dataclasses.dataclass(slots=True)
class _Link:
    """A parameter or buffer on both sides, and the array that they share."""

    owner: nn.Module
    name: str
    theirs: Any
    shared: Array | None = None

    def ours(self) -> Any:
        return self.owner.__dict__[self.name]

    def renew(self) -> None:
        """Torch's side follows when another array was assigned here: by a move, by a parameter server."""
        ours = self.ours()
        array = ours.data if isinstance(ours, Tensor) else ours
        if array is self.shared:
            return
        if isinstance(array, np.ndarray) and not _viewable(array):
            array = array.copy()
            if isinstance(ours, Tensor):
                ours.data = array
            else:
                self.owner.__dict__[self.name] = array
        self.theirs.data = to_torch(array)
        self.shared = array


class TorchModule(nn.Module):
    """A torch module with our parameters: train it with our optimizers, parameter servers, DDP.

    Its parameters and buffers are views of torch's, under the same names, in the same order, so state dicts
    fit both ways. What is assigned to a parameter's `data` later (by `to`, a parameter server) is given back
    to torch before the next forward.

    Args:
        module: any torch.nn.Module. It is used, not copied. Torch's own random state decides its dropout.

    Raises:
        ArgumentError: `module` is none.
    """

    def __init__(self, module: Any) -> None:
        if not isinstance(module, torch.nn.Module):
            raise ArgumentError(f"TorchModule takes a torch.nn.Module, not {type(module).__name__}")
        self._module = module
        self._links: list[_Link] = []
        for path, theirs in module.named_parameters():
            array = from_torch(theirs.detach())
            plant(self, path, array, theirs.requires_grad)
            self._links.append(_Link(*home(self, path), theirs, array))
        persistent = set(module.state_dict())
        for path, theirs in module.named_buffers():
            owner, name = home(self, path)
            array = from_torch(theirs)
            owner.register_buffer(name, array, persistent=path in persistent)
            self._links.append(_Link(owner, name, theirs, array))

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What the torch module answers: Tensors in the place of torch's, in tuples, lists and dicts too."""
        for link in self._links:
            link.renew()
        if self._module.training != self.training:
            self._module.train(self.training)
        given, rebuild = flatten((args, kwargs), (Tensor, np.ndarray, *_device_arrays(args)))
        parameters = [link for link in self._links if isinstance(link.ours(), Tensor)]
        sources = [*given, *(link.ours() for link in parameters)]
        graph = recording(*sources)
        inputs = [_input(value, graph) for value in given]
        positional, named = rebuild(inputs)
        with torch.set_grad_enabled(graph):
            result = self._module(*positional, **named)
        outputs, build = flatten(result, torch.Tensor)
        theirs = [*inputs, *(link.theirs for link in parameters)]
        return build(_results(type(self._module).__name__, outputs, theirs, sources))

    def extra_repr(self) -> str:
        """What stands in the parentheses of the module's repr."""
        return type(self._module).__name__


def _device_arrays(args: Sequence[Any]) -> tuple[type, ...]:
    return tuple({type(value) for value in args if backend.is_array(value)})


def _input(value: Tensor | Array, graph: bool) -> Any:
    array = value.data if isinstance(value, Tensor) else value
    made = to_torch(array)
    return made.requires_grad_() if graph and isinstance(value, Tensor) and value.requires_grad else made


def _results(name: str, outputs: list[Any], theirs: list[Any], sources: list[Any]) -> list[Tensor]:
    """Our tensors for torch's results; those that need gradients belong to one node."""
    given = {tensor.data_ptr() for tensor in theirs}
    # A result that is an input's own memory would change with it.
    own = [out.detach().clone() if out.data_ptr() in given else out.detach() for out in outputs]
    arrays = [from_torch(out) for out in own]
    live = [i for i, out in enumerate(outputs) if out.requires_grad]
    results = [constant(array) for array in arrays]
    if live:
        rule = _rule([outputs[i] for i in live], theirs)
        nodes = record_many(name, [arrays[i] for i in live], rule, tuple(sources), tuple(sources))
        for i, tensor in zip(live, nodes):
            results[i] = tensor
    return results


def _rule(outputs: list[Any], inputs: list[Any]) -> Callable[[tuple[Array | None, ...]], list[Array | None]]:
    wanted = [i for i, tensor in enumerate(inputs) if tensor.requires_grad]

    def rule(gradients: tuple[Array | None, ...]) -> list[Array | None]:
        pairs = [(out, to_torch(g)) for out, g in zip(outputs, gradients) if g is not None]
        # Torch's graph lives as long as this rule does, which our engine decides.
        found = torch.autograd.grad(
            [out for out, _ in pairs],
            [inputs[i] for i in wanted],
            [seed for _, seed in pairs],
            allow_unused=True,
            retain_graph=True,
        )
        answer: list[Array | None] = [None] * len(inputs)
        for i, gradient in zip(wanted, found):
            answer[i] = None if gradient is None else from_torch(gradient.detach())
        return answer

    return rule
