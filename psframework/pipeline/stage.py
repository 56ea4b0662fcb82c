"""One stage on the service that holds it: its module, and what its micro-batches keep. No I/O.

Everything here runs in the compute thread, one action after another.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from psframework import backend
from psframework.autograd import no_grad
from psframework.autograd.engine import backward
from psframework.autograd.recompute import recompute
from psframework.autograd.split import Later, split_backward
from psframework.autograd.tensor import Tensor
from psframework.backend import Array, DType
from psframework.errors import ArgumentError
from psframework.nn.module import Module
from psframework.nn.random import drawing_from
from psframework.optim.rule import UpdateRule
from psframework.pipeline.learning import Learning, dense
from psframework.pipeline.served import Served
from psframework.pipeline.skips import carrying
from psframework.pipeline.trees import Tree, called, leaves, mapped

Loss = Callable[[Any, Any], Tensor]


@dataclass(frozen=True, slots=True)
class StageOptions:
    """How a stage computes.

    Args:
        index: its place in the model.
        seed: decides what dropout drops, with the step, the batch in it and the micro-batch.
        recompute: keep a micro-batch's inputs only, and run the forward again in backward.
        needs_input_gradient: whether a stage before this one waits for a gradient.
        dtype: that the module computes in, and has its parameters in; None: as they are.
        served: whether its parameters are on a parameter server.
    """

    index: int
    seed: int = 0
    recompute: bool = False
    needs_input_gradient: bool = True
    dtype: DType | None = None
    served: bool = False


@dataclass(frozen=True, slots=True)
class Task:
    """One micro-batch of one pass through a stage.

    Args:
        step: counts the steps before this one.
        microbatch: its number.
        inputs: a tree of arrays.
        targets: for the last stage, which computes the loss.
        skips: arrays that earlier stages stashed for this one.
        weight: of its loss in that of the whole batch, times the scale of the loss.
        earlier: batches before its own in this step, whose gradients are added up.
        scored: whether its loss is wanted though there is no backward.
    """

    step: int
    microbatch: int
    inputs: Tree
    targets: Tree = None
    skips: Mapping[str, Array] = field(default_factory=dict)
    weight: float = 1.0
    earlier: int = 0
    scored: bool = False


@dataclass(frozen=True, slots=True)
class Result:
    """What a forward gives.

    Args:
        outputs: a tree of arrays.
        skips: arrays for later stages, by the names under which they were stashed.
        loss: of the micro-batch, where there is one.
    """

    outputs: Tree
    skips: Mapping[str, Array]
    loss: float | None = None


@dataclass(slots=True)
class _Kept:
    """What a micro-batch keeps between its forward and its backward."""

    inputs: list[Tensor]  # leaves that a gradient is wanted of
    entered: Tree  # the tree of all that came in
    outputs: list[Any]  # leaves of the tree that went out; the loss alone, where there is one
    popped: dict[str, Tensor]
    stashed: dict[str, Tensor]
    weight: float | None  # of the loss; None where there is none


class LocalStage:
    """A stage.

    Args:
        module: its part of the model.
        options: how it computes.
        rule: updates its parameters; None: somebody else does, or nobody.
        loss: `loss(outputs, targets)`, a mean over the rows of a micro-batch; for the last stage.

    Attributes:
        module, options: as given.
        learning: its parameters.
        peak: most micro-batches that kept something at once, since `begin`.
    """

    def __init__(
        self, module: Module, options: StageOptions, rule: UpdateRule | None = None, loss: Loss | None = None
    ) -> None:
        self.module = module if options.dtype is None else module.to(options.dtype)
        self.options = options
        self.learning = Served(module, None) if options.served else Learning(module, rule)
        self.peak = 0
        self._loss = loss
        self._kept: dict[int, _Kept] = {}
        self._later: dict[int, Later] = {}

    def begin(self, fresh: bool = True) -> None:
        """A step begins: whatever an earlier one left is dropped; its gradients, if it is `fresh`."""
        self._kept.clear()
        self._later.clear()
        if fresh:
            self.learning.forget()
        self.peak = 0

    def forward(self, task: Task) -> Result:
        """Runs a micro-batch, and keeps what its backward needs.

        Raises:
            ArgumentError: the loss is no scalar.
        """
        entered = mapped(self._entering, task.inputs)
        popped = {name: self._entering(array) for name, array in task.skips.items()}
        outputs, stashed = self._run(task, entered, popped)
        loss = None if self._loss is None else self._loss_of(outputs, task.targets)
        if loss is not None:
            outputs = loss
        inputs = [leaf for leaf in leaves(entered) if isinstance(leaf, Tensor) and leaf.requires_grad]
        weight = None if loss is None else task.weight
        kept = _Kept(inputs, entered, list(leaves(outputs)), popped, stashed, weight)
        self._kept[task.microbatch] = kept
        self.peak = max(self.peak, len(self._kept.keys() | self._later.keys()))
        skips = {name: _leaving(tensor) for name, tensor in stashed.items()}
        if loss is not None:
            return Result(None, skips, loss.data.item())
        return Result(mapped(_leaving, outputs), skips)

    def predict(self, task: Task) -> Result:
        """Runs a micro-batch without keeping anything; if `scored`, its loss too. In evaluation mode."""
        modes = [(each, each.training) for each in self.module.modules()]
        self.module.eval()
        try:
            with no_grad():
                entered = mapped(self._constant, task.inputs)
                popped = {name: self._constant(array) for name, array in task.skips.items()}
                outputs, stashed = self._run(task, entered, popped)
                wanted = self._loss is not None and task.scored
                loss = self._loss_of(outputs, task.targets).data.item() if wanted else None
        finally:
            for module, mode in modes:
                module.training = mode
        skips = {name: _leaving(tensor) for name, tensor in stashed.items()}
        return Result(mapped(_leaving, outputs), skips, loss)

    def backward(self, microbatch: int, gradients: Tree, skips: Mapping[str, Array]) -> Result:
        """Runs the backward of a micro-batch, and adds what comes to the parameters.

        Args:
            microbatch: its number.
            gradients: of its outputs, a tree like them; nothing where there is a loss.
            skips: gradients of what it stashed.

        Returns:
            Gradients of its inputs, and of what it popped. An input that nothing depends on has None.
        """
        kept = self._kept.pop(microbatch)
        with self.learning.summing():
            found = backward(*_roots(kept, gradients, skips))
        return self._answer(kept, found)

    def backward_input(self, microbatch: int, gradients: Tree, skips: Mapping[str, Array]) -> Result:
        """As `backward`, but gradients of the parameters wait for `backward_weight`."""
        kept = self._kept.pop(microbatch)
        wanted = [*kept.inputs, *kept.popped.values()]
        found, self._later[microbatch] = split_backward(*_roots(kept, gradients, skips), wanted)
        return self._answer(kept, {leaf: each for leaf, each in zip(wanted, found) if each is not None})

    def backward_weight(self, microbatch: int) -> None:
        """The rest of a backward that `backward_input` began."""
        with self.learning.summing():
            found = self._later.pop(microbatch).run()
        self.learning.add(found)

    def update(self, coefficient: float = 1.0) -> None:
        """Updates the parameters by their gradients times a coefficient, and forgets the gradients."""
        self.learning.scale(coefficient)
        self.learning.step()

    def snapshot(self) -> dict[str, Any]:
        """All that a step changes, as copies."""
        return self.learning.snapshot()

    def restore(self, snapshot: Mapping[str, Any]) -> None:
        """Goes back to a snapshot; what a step has begun is dropped."""
        self.begin()
        self.learning.restore(snapshot)

    def _run(self, task: Task, entered: Tree, popped: dict[str, Tensor]) -> tuple[Any, dict[str, Tensor]]:
        key = [self.options.seed, self.options.index, task.step, task.microbatch]
        key += [task.earlier] if task.earlier else []

        def run(given: Tree, popped: dict[str, Tensor]) -> tuple[Any, dict[str, Tensor]]:
            with drawing_from(np.random.default_rng(key)), carrying(popped) as stashed:
                outputs = called(self.module, given)
            return outputs, dict(stashed)

        return recompute(run, entered, popped) if self.options.recompute else run(entered, popped)

    def _loss_of(self, outputs: Any, targets: Tree) -> Tensor:
        """The loss; in float32, where the module computes in 16 bits."""
        assert self._loss is not None
        if self.options.dtype is not None:
            outputs, targets = mapped(_in_float32, outputs), mapped(_in_float32, targets)
        loss = self._loss(outputs, targets)
        if not isinstance(loss, Tensor) or loss.data.size != 1:
            raise ArgumentError(
                f"a pipeline's loss must be one number, the mean over a micro-batch, not {loss!r:.100}"
            )
        return loss

    def _entering(self, leaf: Any) -> Any:
        if not backend.is_array(leaf):
            return leaf
        floating = backend.is_floating(leaf.dtype)
        return Tensor(self._cast(leaf), requires_grad=self.options.needs_input_gradient and floating)

    def _constant(self, leaf: Any) -> Any:
        return Tensor(self._cast(leaf)) if backend.is_array(leaf) else leaf

    def _cast(self, array: Array) -> Array:
        dtype = self.options.dtype
        if dtype is None or not backend.is_floating(array.dtype):
            return array
        return array.astype(dtype, copy=False)

    def _answer(self, kept: _Kept, found: dict[Any, Any]) -> Result:
        inputs = mapped(lambda leaf: _taken(found, leaf), kept.entered)
        skips = {name: _taken(found, leaf) for name, leaf in kept.popped.items()}
        self.learning.add(found)
        return Result(inputs, skips)


def _leaving(leaf: Any) -> Any:
    """What is sent while the next action runs: in C order, and nothing that an action may change."""
    array = leaf.data if isinstance(leaf, Tensor) else leaf
    if not backend.is_array(array):
        return array
    computed = isinstance(leaf, Tensor) and leaf._node is not None  # else it may be a buffer of the module
    return array if computed and array.flags.c_contiguous else array.copy()


def _in_float32(leaf: Any) -> Any:
    real = isinstance(leaf, Tensor) or backend.is_array(leaf)
    return leaf.astype(np.float32) if real and backend.is_floating(leaf.dtype) else leaf


def _taken(found: dict[Any, Any], leaf: Any) -> Any:
    gradient = found.pop(leaf, None) if isinstance(leaf, Tensor) else None
    return None if gradient is None else dense(gradient)


def _roots(kept: _Kept, gradients: Tree, skips: Mapping[str, Array]) -> tuple[list[Tensor], list[Any]]:
    """What a backward starts from, and the gradients there."""
    seeds = list(leaves(gradients)) if kept.weight is None else [kept.weight]
    pairs = list(zip(kept.outputs, seeds))
    pairs += [(tensor, skips.get(name)) for name, tensor in kept.stashed.items()]
    used = [(root, seed) for root, seed in pairs if seed is not None and _can(root)]
    roots = [root for root, _ in used]
    return roots, [seed if backend.is_array(seed) else _number(root, seed) for root, seed in used]


def _can(root: Any) -> bool:
    return isinstance(root, Tensor) and root.requires_grad


def _number(root: Tensor, value: float) -> Array:
    return backend.xp(root.data).full(root.shape, value, root.dtype)  # type: ignore[no-any-return]
