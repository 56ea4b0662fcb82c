"""One rank's gradients: a backward that fills buckets, and launches each while it goes on to the next."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from math import inf
from time import perf_counter
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from psframework import backend
from psframework.autograd import SparseRows, Tensor
from psframework.autograd.accumulate import deposit_all
from psframework.autograd.engine import Key, Sums, finished, propagate, start
from psframework.autograd.offers import offering
from psframework.autograd.traced import Traced
from psframework.backend import Array
from psframework.collective.descriptor import Operation
from psframework.collective.ops import ReduceOp
from psframework.ddp.bucket import Bucket, Ranks
from psframework.ddp.buckets import Piece, lengths, plan
from psframework.ddp.reach import Reach, reach, ready_order
from psframework.ddp.step import Span, Step
from psframework.errors import ArgumentError

Roots: TypeAlias = "Tensor | Sequence[Tensor]"
Bits = npt.NDArray[np.uint8]

_NAMED: Final = 5  # parameters that a message names


class Reducer:
    """The gradients of a model's parameters, in buckets.

    Args:
        parameters: by name, in order of registration; those that don't require grad are left alone.
        group: the ranks.
        cap: bytes of a bucket.
        sparse: names of those that get SparseRows, and are in no bucket.
        unused: whether parameters may go without gradient.
        static: whether the same ones do in every backward.

    Attributes:
        names, parameters: that are trained, in order of registration.
        sparse: numbers of those in no bucket.
        buckets: in the order in which they are reduced.
        order: the parameters as their gradients became ready in the last backward.
        coming: the order that buckets get before the next backward; None if they stay as they are.
    """

    def __init__(
        self,
        parameters: Mapping[str, Tensor],
        group: Ranks,
        cap: int,
        *,
        sparse: Iterable[str] = (),
        unused: bool = False,
        static: bool = False,
    ) -> None:
        trained = {name: each for name, each in parameters.items() if each.requires_grad}
        self.names, self.parameters = list(trained), list(trained.values())
        self._frozen: dict[Any, str] = {
            each: name for name, each in parameters.items() if name not in trained
        }
        apart = set(sparse)
        self.sparse = [number for number, name in enumerate(self.names) if name in apart]
        self._dense = [number for number, name in enumerate(self.names) if name not in apart]
        self.buckets: list[Bucket] = []
        self.order: list[int] = []
        self.coming: Sequence[int] | None = None
        self._group, self._cap, self._unused, self._static = group, cap, unused, static
        self._index = {parameter: number for number, parameter in enumerate(self.parameters)}
        self._pieces = [_piece(parameter.data) for parameter in self.parameters]
        self._arenas: dict[Hashable, Array] = {}
        self._views: dict[int, Array] = {}
        # Which parameters got a gradient since the last reduction, in backwards without one too.
        self._took_part: Bits = np.zeros(len(self.parameters), np.uint8)
        self._always: tuple[Bits, Bits] | None = None  # static: what took part here, and anywhere

    def arenas(self) -> dict[Hashable, tuple[int, Array]]:
        """How many elements are needed for each kind of gradient, and an array of that kind."""
        found = {self._pieces[number].kind: self.parameters[number].data for number in self._dense}
        sizes = lengths(self._pieces[number] for number in self._dense)
        return {kind: (sizes[kind], like) for kind, like in found.items()}

    def settle_in(self, arenas: dict[Hashable, Array]) -> None:
        """Gradients live in these arrays from now on; one that is there already moves in with the next."""
        self._arenas = arenas
        self.place(reversed(range(len(self.parameters))))

    def place(self, order: Iterable[int]) -> None:
        """Makes buckets for an order of the parameters; gradients that are in a bucket move along."""
        kept = {
            number: view.copy()
            for number, view in self._views.items()
            if self.parameters[number].grad is view
        }
        for arena in self._arenas.values():
            arena[...] = 0
        spans = plan(self._pieces, [number for number in order if number not in self.sparse], self._cap)
        self.buckets = []
        for span in spans:
            parameters = [self.parameters[number] for number in span.members]
            bucket = Bucket(
                len(self.buckets), self._arenas[span.kind][span.start : span.stop], parameters,
                [self.names[number] for number in span.members], span.starts, self._group,
            )  # fmt: skip
            self.buckets.append(bucket)
            self._views |= zip(span.members, bucket.views())
        for number, view in self._views.items():
            parameter = self.parameters[number]
            parameter.grad_buffer = view
            if number in kept:
                view[...] = kept[number]
                parameter.grad = view

    def release(self) -> None:
        """The parameters go on without buckets; what was averaged stays in their `grad`."""
        for number, view in self._views.items():
            parameter = self.parameters[number]
            if parameter.grad_buffer is view:
                parameter.grad_buffer = None
                if parameter.grad is view:
                    parameter.grad = view.copy()
        self._views.clear()
        self._arenas.clear()
        self.buckets.clear()

    # In the compute thread

    def run(self, step: Step, roots: Roots, seeds: Any, retain_graph: bool) -> None:
        """The backward. Fills buckets in their order, and launches each; errors go to the step's flight."""
        with step:
            begun = perf_counter()
            self._settle()
            gradients, heap = start(roots, seeds)
            found = reach(gradients, self._index)
            self.order = ready_order(found.lowest)
            self._took_part |= np.array(found.lowest, bool)
            problem = self._problem(found)
            if problem:
                step.flight.refuse(problem)
                return
            self._tell_used(step)
            with offering(self._vacant()):
                self._compute(step, _Pass(gradients, heap, retain_graph, found), begun)

    def run_alone(self, roots: Roots, seeds: Any, retain_graph: bool) -> None:
        """A backward that only adds up here: `no_sync`."""
        gradients, heap = start(roots, seeds)
        if self._unused:
            self._took_part |= np.array(reach(gradients, self._index).lowest, bool)
        propagate(gradients, heap, retain_graph, sums=(sums := Sums()))
        deposit_all(finished(gradients, {}, sums))

    def shadow(self, step: Step) -> None:
        """Takes part in a backward of the others without anything to give."""
        with step:
            self._settle()
            self.drop()
            self._tell_used(step)
            for bucket in self.buckets:
                bucket.buffer[...] = 0
                step.launch(bucket)

    def drop(self) -> None:
        """Forgets all gradients."""
        for parameter in self.parameters:
            parameter.grad = None
        self._took_part[:] = 0

    def _settle(self) -> None:
        """Before a backward: everything is where it has to be."""
        for number, view in self._views.items():
            if self.parameters[number].grad_buffer is not view:
                raise ArgumentError(
                    f"the gradient of {self.names[number]!r} no longer lives in a bucket: another wrapper "
                    "of the model took it over, so this one can't be used any more"
                )
        coming, self.coming = self.coming, None
        if coming is not None:
            self.place(coming)

    def _vacant(self) -> dict[Traced, Array]:
        """Places in buckets that gradients can be written into right away."""
        placed = ((self.parameters[number], view) for number, view in self._views.items())
        return {each: view for each, view in placed if each.grad is None and not each.leaf_hooks}

    def _compute(self, step: Step, way: _Pass, begun: float) -> None:
        last = len(self.buckets) - 1
        for number, bucket in enumerate(self.buckets):
            # After the last bucket is launched nothing may fail here: the others could no longer be told.
            way.go(0 if number == last else min(way.floors(bucket, self._index), default=inf))
            self._fill(bucket, way)
            if number == last:
                way.rest()
            now = perf_counter()
            step.spent.append(Span(f"backward {number}", begun, now))
            begun = now
            step.launch(bucket)
        if not self.buckets:
            way.go(0)
            way.rest()

    def _fill(self, bucket: Bucket, way: _Pass) -> None:
        found = way.take(bucket.parameters)
        deposit_all(found)
        for parameter in bucket.parameters:
            if parameter in found:
                continue
            view, gradient = parameter.grad_buffer, parameter.grad
            assert view is not None
            if gradient is None:
                view[...] = 0
            elif gradient is not view:
                view[...] = gradient.to_dense() if isinstance(gradient, SparseRows) else gradient
            if way.found.lowest[self._index[parameter]]:
                parameter.grad = view

    # Which parameters take part

    def _problem(self, found: Reach) -> str:
        """Why no rank may go on; "" if nothing is wrong."""
        thawed = [self._frozen[leaf] for leaf in found.others if leaf in self._frozen]
        if thawed:
            return (
                f"{_listed(thawed)} did not require grad when the model was wrapped, and does now: "
                "wrap the model again"
            )
        if not self._unused:
            missing = [name for name, order in zip(self.names, found.lowest) if not order]
            if missing:
                return (
                    f"{_listed(missing)} got no gradient in this backward: every parameter must take part in "
                    "every loss, unless the model is wrapped with find_unused_parameters=True"
                )
        elif self._always is not None:
            changed = [name for name, a, b in zip(self.names, self._always[0], self._took_part) if a != b]
            if changed:
                return f"static_graph=True, but {_listed(changed)} takes part in some backwards only"
        return ""

    def _tell_used(self, step: Step) -> None:
        """With parameters that may go unused, ranks exchange which took part."""
        if not self._unused:
            return
        if self._always is not None:
            step.used = self._always[1]
            return
        step.mine, step.used = self._took_part.copy(), self._took_part.copy()
        step.flight.begin(Operation.ALL_REDUCE, step.used, step.used, ReduceOp.MAX)

    def ended(self, step: Step, error: BaseException | None) -> None:
        """All collectives of a backward have landed; in any thread."""
        if error is not None:
            # What the buckets hold is neither this rank's gradients nor an average.
            self.drop()
            return
        self._took_part[:] = 0
        if step.used is not None:
            if self._static and step.whole and step.mine is not None:
                self._always = step.mine, step.used
            for number, view in self._views.items():
                if step.used[number]:
                    self.parameters[number].grad = view


class _Pass:
    """A backward in steps."""

    def __init__(self, gradients: dict[Key, Any], heap: list[Any], retain_graph: bool, found: Reach) -> None:
        self.found = found
        self._gradients, self._heap, self._retain = gradients, heap, retain_graph
        self._sums = Sums()
        self._floor = inf

    def floors(self, bucket: Bucket, index: Mapping[Tensor, int]) -> list[int]:
        """Below which orders the backward must be for the gradients of a bucket to be final."""
        orders = [self.found.lowest[index[parameter]] for parameter in bucket.parameters]
        return [order - 1 for order in orders if order]

    def go(self, floor: float) -> None:
        """Runs what is above `floor`, unless it has run."""
        if floor < self._floor:
            self._floor = floor
            propagate(self._gradients, self._heap, self._retain, floor=int(floor), sums=self._sums)

    def take(self, leaves: Iterable[Tensor]) -> dict[Any, Any]:
        """The gradients of leaves, as far as there are any; for who copies them at once."""
        gradients = self._gradients
        ready: dict[Key, Any] = {leaf: gradients.pop(leaf) for leaf in leaves if leaf in gradients}
        return finished(ready, {}, self._sums, lent=True)

    def rest(self) -> None:
        """Everything that is in no bucket gets its gradient."""
        deposit_all(finished(self._gradients, {}, self._sums))
        self._gradients.clear()


def _piece(array: Array) -> Piece:
    kind = backend.dtype_name(array.dtype), str(backend.device_of(array))
    return Piece(array.size, array.dtype.itemsize, kind)


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ("parameter " if len(names) == 1 else "parameters ") + ", ".join(map(repr, names[:_NAMED])) + more
