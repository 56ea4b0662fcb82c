"""What each layer of a model costs: the time of a step and the memory, measured on this machine."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np

from psframework import backend
from psframework.autograd import Node, SparseRows, Tensor, backward, enable_grad
from psframework.autograd.watch import observing
from psframework.backend import Array
from psframework.errors import ArgumentError
from psframework.nn import Module, Sequential
from psframework.nn.random import drawing_from
from psframework.pipeline.skips import carrying, skips_of
from psframework.pipeline.trees import Tree, arrays_of, leaves, mapped

Loss = Callable[[Any, Any], Tensor]
Clock = Callable[[], float]


@dataclass(frozen=True, slots=True)
class Cost:
    """What a layer costs with one micro-batch.

    Attributes:
        seconds: of its forward and backward.
        nbytes: of its parameters, their gradients, its buffers, and about what it keeps for backward.
    """

    seconds: float
    nbytes: int


@dataclass(frozen=True, slots=True)
class _Step:
    """A layer with what goes into it.

    Attributes:
        layer: the module.
        inputs: a tree of arrays.
        skips: arrays that earlier layers stashed for it.
        head: what comes after the last layer, the loss.
        first: whether nobody waits for the gradient of its inputs.
    """

    layer: Module
    inputs: Tree
    skips: dict[str, Array]
    head: Callable[[Any], Any]
    first: bool

    def forward(self) -> tuple[Any, dict[str, Tensor]]:
        """What it gives, and what it stashes."""
        given = mapped(lambda leaf: _entering(leaf, not self.first), self.inputs)
        with carrying({name: _entering(array, True) for name, array in self.skips.items()}) as stashed:
            outputs = self.layer(given)
        return self.head(outputs), stashed

    def seconds(self, clock: Clock) -> float:
        """How long its forward and backward take."""
        began = clock()
        tensors = _tensors(self.forward())
        roots = [tensor for tensor in tensors if tensor.requires_grad]
        seeds = [backend.xp(root.data).ones_like(root.data) for root in roots]
        gradients = backward(roots, seeds) if roots else {}
        _wait(tensors, gradients)
        return clock() - began


def measure(
    model: Sequential,
    sample: Tree,
    loss: Loss | None = None,
    repetitions: int = 5,
    clock: Clock = time.perf_counter,
) -> list[Cost]:
    """The cost of each layer, run with what the layer before it gives. The model is as before afterwards.

    The layers run one after the other as in a step, `repetitions` times, after one run that is not counted.

    Args:
        model: its layers, in the mode (training or evaluation) that they shall be measured in.
        sample: one micro-batch, a tree of arrays; with `loss` a tuple of that and its targets.
        loss: of (outputs, targets); its time counts with the last layer.
        repetitions: runs, of which a layer's median counts.
        clock: seconds.

    Raises:
        ArgumentError: no repetitions, or with a loss the sample is no pair.
    """
    if isinstance(repetitions, bool) or not isinstance(repetitions, int) or repetitions < 1:
        raise ArgumentError(f"repetitions={repetitions!r}: a whole number, at least 1")
    with _undisturbed(model), drawing_from(np.random.default_rng(0)), enable_grad():
        steps, kept = _first_run(model, sample, loss)
        runs = [[step.seconds(clock) for step in steps] for _ in range(repetitions)]
    sizes = [_held(step.layer) + nbytes for step, nbytes in zip(steps, kept)]
    return [Cost(median(each), nbytes) for each, nbytes in zip(zip(*runs), sizes)]


def _first_run(model: Sequential, sample: Tree, loss: Loss | None) -> tuple[list[_Step], list[int]]:
    """The layers with their inputs, and what each keeps for backward."""
    inputs, head = _head(sample, loss)
    steps, kept, waiting = [], [], dict[str, Array]()
    for place, layer in enumerate(model):
        names = {name for module in layer.modules() for name in skips_of(module).pop}
        skips = {name: waiting.pop(name) for name in names & waiting.keys()}
        last = place == len(model) - 1
        step = _Step(layer, inputs, skips, head if last else _as_it_is, first=place == 0)
        with _recorded() as results:
            outputs, stashed = step.forward()
        steps.append(step)
        kept.append(_kept(_tensors((outputs, stashed)), results, step))
        inputs = arrays_of(outputs)
        waiting |= {name: tensor.data for name, tensor in stashed.items()}
    return steps, kept


def _head(sample: Tree, loss: Loss | None) -> tuple[Tree, Callable[[Any], Any]]:
    """What goes into the first layer, and what comes after the last one."""
    if loss is None:
        return arrays_of(sample), _as_it_is
    if not isinstance(sample, tuple) or len(sample) != 2:
        raise ArgumentError("with a loss the sample must be a pair: (inputs, targets) of one micro-batch")
    inputs, targets = arrays_of(sample)
    return inputs, lambda outputs: loss(outputs, targets)


def _entering(leaf: Any, wanted: bool) -> Any:
    """An array as a tensor, with a gradient if one is wanted and can be; other things as they are."""
    if not backend.is_array(leaf):
        return leaf
    return Tensor(leaf, requires_grad=wanted and backend.is_floating(leaf.dtype))


def _as_it_is(outputs: Any) -> Any:
    return outputs


@contextmanager
def _undisturbed(model: Module) -> Iterator[None]:
    """Puts back the buffers, which a forward in training changes, as batch norm's statistics."""
    places = [(module, name) for module in model.modules() for name in module._buffers]
    before = [(module, name, module.__dict__[name]) for module, name in places]
    copies = [None if buffer is None else buffer.copy() for _, _, buffer in before]
    try:
        yield
    finally:
        for (module, name, buffer), copy in zip(before, copies):
            module.__dict__[name] = buffer
            if buffer is not None:
                buffer[...] = copy


@contextmanager
def _recorded() -> Iterator[dict[Node, Array]]:
    """The results of the operations in the block."""
    results: dict[Node, Array] = {}

    def note(node: Node, data: Array | None) -> None:
        if data is not None:
            results[node] = data

    with observing(note):
        yield results


def _kept(outputs: list[Tensor], results: Mapping[Node, Array], step: _Step) -> int:
    """Bytes of those results that the graph of the outputs holds on to, each piece of memory once.

    What comes from the layer before counts there, and parameters count for themselves.
    """
    seen: set[Any] = set()
    stack: list[Any] = [tensor._node for tensor in outputs]
    while stack:
        node = stack.pop()
        if isinstance(node, Node) and node not in seen:
            seen.add(node)
            stack.extend(node.edges)
    others = [parameter.data for parameter in step.layer.parameters()]
    others += [leaf for leaf in leaves((step.inputs, step.skips)) if backend.is_array(leaf)]
    elsewhere = {id(_whole(array)) for array in others}
    memory = {id(whole): whole for node in seen & results.keys() for whole in [_whole(results[node])]}
    return sum(array.nbytes for key, array in memory.items() if key not in elsewhere)


def _whole(array: Any) -> Any:
    """The array whose memory this one shows."""
    while backend.is_array(array.base):
        array = array.base
    return array


def _held(layer: Module) -> int:
    """Bytes of parameters, gradients and buffers."""
    parameters = [(parameter.data.nbytes, parameter.requires_grad) for parameter in layer.parameters()]
    return sum(size * (1 + trained) for size, trained in parameters) + sum(b.nbytes for b in layer.buffers())


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in leaves(tree) if isinstance(leaf, Tensor)]


def _wait(tensors: list[Tensor], gradients: Mapping[Any, Array | SparseRows]) -> None:
    """Returns when a device has computed all of them: an element of each is fetched."""
    arrays = [
        gradient.values if isinstance(gradient, SparseRows) else gradient for gradient in gradients.values()
    ]
    for array in (*arrays, *(tensor.data for tensor in tensors)):
        backend.asnumpy(array[(slice(1),) * array.ndim])
