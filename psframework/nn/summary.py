"""A table of a model's layers: their outputs, parameters, memory and products."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from psframework import backend
from psframework.autograd import Tensor, no_grad
from psframework.errors import ArgumentError
from psframework.nn.layers.attention import MultiheadAttention
from psframework.nn.layers.conv import Conv1d, Conv2d
from psframework.nn.layers.conv_transpose import ConvTranspose1d, ConvTranspose2d
from psframework.nn.layers.linear import Linear
from psframework.nn.layers.recurrent import GRU, LSTM, RNN
from psframework.nn.layers.recurrent_cell import GRUCell, LSTMCell, RNNCell
from psframework.nn.module import Module

# Layers that multiply each place of their input by all their matrices.
_MATRICES = (Linear, MultiheadAttention, RNN, GRU, LSTM, RNNCell, GRUCell, LSTMCell)


@dataclass
class Layer:
    """One module of a model, with its submodules.

    Attributes:
        path: dotted name; "" for the model itself.
        kind: name of the class.
        outputs: shapes of the results of its last call; None if it was not called.
        parameters: number of elements of its parameters.
        trainable: of those, how many require grad.
        macs: multiplications (each with an addition) by weights, of all calls.
        output_bytes: size of the results of its own calls, not of its submodules'.
    """

    path: str
    kind: str
    outputs: tuple[tuple[int, ...], ...] | None = None
    parameters: int = 0
    trainable: int = 0
    macs: int = 0
    output_bytes: int = 0


@dataclass
class Summary:
    """What `summary` found; `str()` of it is the table.

    Attributes:
        layers: all modules, the model first.
        parameters: number of elements of all parameters, shared ones once.
        trainable: of those, how many require grad.
        buffers: number of elements of all buffers.
        parameter_bytes: size of parameters and buffers.
        output_bytes: size of what the innermost layers answered: about what a training step keeps.
        macs: multiplications (each with an addition) by weights in one forward, of the layers of `nn`.
    """

    layers: list[Layer] = field(default_factory=list)
    parameters: int = 0
    trainable: int = 0
    buffers: int = 0
    parameter_bytes: int = 0
    output_bytes: int = 0
    macs: int = 0
    depth: int | None = None

    def __str__(self) -> str:
        header = ("layer", "class", "output", "parameters", "multiply-adds")
        rows = [header, *self._rows()]
        widths = [max(len(row[i]) for row in rows) for i in range(len(header))]
        lines = [
            "  ".join(
                text.ljust(width) if i < 3 else text.rjust(width)
                for i, (text, width) in enumerate(zip(row, widths))
            ).rstrip()
            for row in rows
        ]
        rule = "-" * max(map(len, lines))
        frozen = self.parameters - self.trainable
        return "\n".join(
            [
                lines[0],
                rule,
                *lines[1:],
                rule,
                f"parameters: {self.parameters:,} ({self.trainable:,} trainable, {frozen:,} frozen), "
                f"buffers: {self.buffers:,}",
                f"memory: {_bytes(self.parameter_bytes)} of parameters and buffers, "
                f"{_bytes(self.output_bytes)} of outputs",
                f"multiply-adds by weights: {self.macs:,}",
            ]
        )

    def __repr__(self) -> str:
        return f"<Summary of {len(self.layers)} layers, {self.parameters:,} parameters>"

    def _rows(self) -> Iterator[tuple[str, ...]]:
        for layer in self.layers:
            level = len(layer.path.split(".")) if layer.path else 0
            if self.depth is None or level <= self.depth:
                name = "  " * level + (layer.path.rpartition(".")[2] or "model")
                outputs = "not called" if layer.outputs is None else ", ".join(map(str, layer.outputs))
                count, macs = (f"{number:,}" if number else "-" for number in (layer.parameters, layer.macs))
                yield name, layer.kind, outputs or "-", count, macs


def summary(
    model: Module,
    *inputs: Any,
    input_size: Sequence[int] | Sequence[Sequence[int]] | None = None,
    depth: int | None = None,
    show: bool = True,
) -> Summary:
    """Runs a model once, and prints a table of its layers.

    The run is in evaluation mode and records no graph; afterwards the model is as it was. Products that
    involve no weights (attention's scores) are not counted.

    Args:
        model: any module.
        inputs: arguments of its forward, for instance ids for an embedding.
        input_size: instead of `inputs` the shape of one, with its batch axis, or a list of shapes: zeros in
            the dtype and on the device of the model's parameters.
        depth: how many levels below the model are shown.
        show: whether to print the table.

    Returns:
        The figures; `str()` of it is the table.

    Raises:
        ArgumentError: neither inputs nor a size, or both.
    """
    if bool(inputs) == (input_size is not None):
        raise ArgumentError("summary: give the inputs of the model, or input_size=(batch, ...): one of both")
    arguments = inputs if input_size is None else _zeros(model, input_size)
    layers = {module: Layer(path, type(module).__name__) for path, module in model.named_modules()}
    for module, layer in layers.items():
        counts = [(parameter.size, parameter.requires_grad) for parameter in module.parameters()]
        layer.parameters = sum(size for size, _ in counts)
        layer.trainable = sum(size for size, trained in counts if trained)
    _run(model, arguments, layers)
    _gather(layers)
    whole, arrays = layers[model], [parameter.data for parameter in model.parameters()]
    buffers = list(model.buffers())
    found = Summary(
        list(layers.values()),
        whole.parameters,
        whole.trainable,
        sum(buffer.size for buffer in buffers),
        sum(array.nbytes for array in arrays + buffers),
        sum(layer.output_bytes for module, layer in layers.items() if not module._modules),
        whole.macs,
        depth,
    )
    if show:
        print(found)
    return found


def _zeros(model: Module, size: Any) -> list[Any]:
    sizes = [size] if all(isinstance(n, int) for n in size) else size
    like = next((parameter.data for parameter in model.parameters()), None)
    if like is None:
        raise ArgumentError("summary: a model without parameters has no dtype: pass inputs, not input_size")
    return [backend.array_like(backend.xp(like).zeros(tuple(one), like.dtype), like) for one in sizes]


def _run(model: Module, arguments: Sequence[Any], layers: dict[Module, Layer]) -> None:
    """One forward in evaluation mode, with a hook on each module; everything is put back."""
    before = {module: (module.training, module.__dict__.get("_hooks")) for module in layers}

    def seen(module: Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        layer, tensors = layers[module], list(_tensors(output))
        layer.outputs = tuple(tensor.shape for tensor in tensors)
        layer.output_bytes += sum(tensor.data.nbytes for tensor in tensors)
        layer.macs += _products(module, [*_tensors(args), *_tensors(kwargs)], tensors)

    handles = [module.register_forward_hook(seen, with_kwargs=True) for module in layers]
    try:
        with no_grad():
            model.eval()(*arguments)
    finally:
        for handle in handles:
            handle.remove()
        for module, (training, hooks) in before.items():
            module.training = training
            module.__dict__["_hooks"] = hooks


def _gather(layers: dict[Module, Layer]) -> None:
    """Adds the products of submodules to those of their owners, innermost first."""
    for module in reversed(layers):
        layers[module].macs += sum(layers[child].macs for child in set(module.children()))


def _products(module: Module, inputs: list[Tensor], outputs: list[Tensor]) -> int:
    """Multiplications by the module's own weights in one call, as far as its class is known."""
    if isinstance(module, ConvTranspose1d | ConvTranspose2d):
        return inputs[0].size * (module.weight.size // len(module.weight))
    if isinstance(module, Conv1d | Conv2d):
        return outputs[0].size * (module.weight.size // len(module.weight))
    if not isinstance(module, _MATRICES):
        return 0
    places = inputs[0].size // max(inputs[0].shape[-1], 1)
    return places * sum(
        parameter.size for parameter in module.parameters(recurse=False) if parameter.ndim == 2
    )


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif backend.is_array(value):
        yield Tensor(value)
    elif isinstance(value, tuple | list | dict):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _tensors(item)


def _bytes(count: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024 or unit == "GiB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    raise AssertionError
