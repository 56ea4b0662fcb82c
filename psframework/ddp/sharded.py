"""`psf.ShardedOptimizer`: each rank keeps the optimizer's state of its share of the parameters (ZeRO 1)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from psframework.autograd.tensor import Tensor
from psframework.backend import Array, asnumpy, device_of, xp
from psframework.collective.group import ProcessGroup
from psframework.ddp.agree import check_group
from psframework.ddp.distributed import DistributedDataParallel
from psframework.ddp.partition import Extent, nbytes, partition
from psframework.ddp.pieces import Part, pack, put, unpack
from psframework.errors import ArgumentError, PsfError
from psframework.nn.module import Module
from psframework.optim.optimizer import Optimizer, Params
from psframework.optim.scaler import GradScaler
from psframework.rpc.compute import compute

_CHUNK: Final = 1 << 25
"""Bytes of each rank's share that are gathered at once, so that a step needs no second copy of the model."""

_PARAMS: Final = "params"
_STEP: Final = "step"


@dataclass(slots=True, eq=False)
class _Step:
    """One step, in as many calls as it takes.

    Attributes:
        own: bytes of this rank's share, once it is updated.
        attempt: to update the share and give it to the others, while it is under way.
    """

    own: Array | None = None
    attempt: asyncio.Task[None] | None = None


class ShardedOptimizer:
    """An optimizer of which each rank keeps 1 / size of the state, and does 1 / size of the work.

        ddp = await psf.DistributedDataParallel(model, group)
        opt = psf.ShardedOptimizer(optim.Adam(lr=1e-3), model, group)
        ...
        await ddp.backward(F.cross_entropy(ddp(x), y))
        await opt.step()
        opt.zero_grad()

    Gradients must be the same on all ranks, as DistributedDataParallel leaves them: `optim.clip_grad_norm_`
    needs no change then, nor does a GradScaler but in `await opt.step(scaler)`. Each rank updates its share
    of the parameters and gives it to the others; they become what one optimizer over all would have made of
    them, to the bit.

    Rules that work elementwise cut parameters wherever it evens out, row-wise ones between rows; rules that
    need a parameter as a whole (LAMB) leave it to one rank, so shares may differ by up to the largest.

    Args:
        optimizer: a description, without parameters: `optim.Adam(lr=1e-3)`.
        model: a Module, wrapped or not, of which the parameters that require grad are stepped; or
            parameters, or groups of them, as optimizers take them. The same on all ranks.
        group: the ranks.

    Attributes:
        param_groups: as an Optimizer's; hyper-parameters may be assigned, alike on all ranks, and count from
            the next step.

    Raises:
        ArgumentError: the optimizer has parameters; there are none to step; they are on several devices.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        model: Module | DistributedDataParallel | Params,
        group: ProcessGroup,
    ) -> None:
        check_group(group)
        self._group = group
        self._whole = _over_all(optimizer, model)
        names = {parameter: name for name, parameter in _named(model)}
        rule = optimizer.rule
        self._parameters = [p for each in self.param_groups for p in each[_PARAMS]]
        if len({device_of(parameter.data) for parameter in self._parameters}) > 1:
            raise ArgumentError(
                "a sharded optimizer takes parameters of one device: make one for each device"
            )
        self._extents = [Extent.of(rule, p.shape, p.dtype) for p in self._parameters]
        self._shares = partition(self._extents, group.size)
        self._parts = [
            Part(self._parameters[piece.index], self._extents[piece.index], piece)
            for piece in self._shares[group.rank]
        ]
        at = {part.piece.index: part for part in self._parts}
        groups, first = [], 0
        for each in self.param_groups:
            last = first + len(each[_PARAMS])
            mine = [at[index] for index in range(first, last) if index in at]
            groups.append({**each, _PARAMS: [(names.get(p.parameter, ""), p.tensor) for p in mine]})
            first = last
        self._mine = Optimizer(groups, rule)  # over `_parts`, in their order
        self._turn = asyncio.Lock()
        self._step: _Step | None = None  # one that has not ended well yet

    def __repr__(self) -> str:
        return f"ShardedOptimizer({self._whole.rule}, rank {self._group.rank} of {self._group.size})"

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """Dicts of "params" and hyper-parameters."""
        return self._whole.param_groups

    @property
    def state_nbytes(self) -> int:
        """Bytes of state on this rank; there are some from the first step on."""
        return self._mine.state_nbytes

    def zero_grad(self, set_to_none: bool = True) -> None:
        """As an Optimizer's. A step that failed or was cancelled is given up: the next one is another."""
        self._whole.zero_grad(set_to_none)
        self._step = None

    async def step(self, scaler: GradScaler | None = None, timeout: float | None = None) -> bool:
        """Updates every parameter that has a gradient; when it returns, all of them are new on this rank.

        All ranks call it, with the same gradients. If it raises, parameters may be new in part; the next call
        (on all ranks where it raised) finishes that step: a share that is new is not updated once more.

        Cancelling it does not stop it, since the other ranks wait for it: the next call waits for its end.

        Args:
            scaler: unscales the gradients if that is still to be done; the step is not taken if one of them
                is not finite. As gradients are the same on all ranks, all find the same.
            timeout: seconds for each of the collectives; None: the group's.

        Returns:
            Whether the step was taken.

        Raises:
            CollectiveMismatch: another rank could not update its share; says why.
            PsfError: as the group's all_gather.
        """
        if self._step is None:
            if scaler is not None and not scaler.ready(self):
                return False
            self._step = _Step()
        step = self._step
        if step.attempt is None:
            step.attempt = asyncio.get_running_loop().create_task(self._attempt(step, timeout))
        attempt = step.attempt
        await asyncio.wait([attempt])
        if step.attempt is attempt:
            step.attempt = None
        attempt.result()
        if self._step is step:
            self._step = None
        return True

    async def _attempt(self, step: _Step, timeout: float | None) -> None:
        async with self._turn:
            try:
                own = await compute(self._update, step)
            except Exception as error:
                with contextlib.suppress(PsfError):
                    why = f"ShardedOptimizer.step: {type(error).__name__}: {error}"
                    await self._group.refuse(why, timeout)
                raise
            if self._group.size > 1:
                for start in range(0, own.size, _CHUNK):
                    everywhere = await self._group.all_gather(own[start : start + _CHUNK], timeout)
                    await compute(self._take_over, everywhere, start)
            for parameter in self._parameters:
                parameter.bump_version()

    def _update(self, step: _Step) -> Array:
        """Steps this rank's pieces, once; their bytes, in an array as long as that of the rank with most."""
        if step.own is not None:
            return step.own
        for ours, mine in zip(self.param_groups, self._mine.param_groups):
            mine.update({name: value for name, value in ours.items() if name != _PARAMS})
        for part in self._parts:
            part.refresh()
        self._mine.step()
        self._mine.zero_grad()
        n = max(nbytes(share, self._extents) for share in self._shares)
        own: Array = xp(self._parameters[0].data).empty(n, np.uint8)
        pack(self._parameters, self._shares[self._group.rank], self._extents, own)
        step.own = own
        return own

    def _take_over(self, everywhere: Array, start: int) -> None:
        """The other ranks' pieces, from byte `start` of their shares on."""
        for rank, share in enumerate(self._shares):
            if rank != self._group.rank:
                unpack(self._parameters, share, self._extents, everywhere[rank], start)

    async def state_dict(self, dst: int = 0, timeout: float | None = None) -> dict[str, Any] | None:
        """The whole state on rank `dst`, as an Optimizer over all parameters would return it; else None.

        All ranks call it. It can be loaded by a sharded optimizer of any number of ranks, or by an Optimizer.
        """
        async with self._turn:
            saved = (await compute(self._mine.state_dict))["state"]
            state = [saved.get(i) for i in range(len(self._parts))]
            answers = await self._group.gather_object(state, dst, timeout)
        if answers is None:
            return None
        return {**self._whole.state_dict(), "state": await compute(self._assembled, answers)}

    def _assembled(self, answers: Sequence[Sequence[Mapping[str, Any] | None]]) -> dict[int, dict[str, Any]]:
        """All ranks' slots as those of whole parameters."""
        state: dict[int, dict[str, Any]] = {}
        for share, slots in zip(self._shares, answers, strict=True):
            for piece, given in zip(share, slots, strict=True):
                if given is None:  # never stepped
                    continue
                whole = state.setdefault(piece.index, {_STEP: given[_STEP]})
                shape = self._parameters[piece.index].shape
                for name, array in given.items():
                    if name == _STEP:
                        continue
                    if name not in whole:
                        whole[name] = np.empty(self._whole.rule.slot_shape(name, shape), array.dtype)
                    put(whole[name], asnumpy(array), piece, self._extents[piece.index])
        return dict(sorted(state.items()))

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Takes over this rank's share of what `state_dict()` returned, on however many ranks.

        Every rank needs the whole state, which may also be of an Optimizer: all read it from one file, or
        rank 0 hands it out by `await group.broadcast_object(state, src=0)`.

        Raises:
            ArgumentError: another number of groups or parameters, or slots of another shape or name.
                Nothing has been changed then.
        """
        if not isinstance(state_dict, Mapping) or not {"state", "param_groups"} <= set(state_dict):
            raise ArgumentError(
                "this is no state of an optimizer: state_dict() answers it on one rank, and None elsewhere"
            )
        saved, slots = state_dict["param_groups"], state_dict["state"]
        theirs, ours = ([len(group[_PARAMS]) for group in groups] for groups in (saved, self.param_groups))
        if theirs != ours:
            raise ArgumentError(f"the state is of groups with {theirs} parameters, this optimizer has {ours}")
        whole = {int(index): slots[index] for index in slots}
        for index, given in whole.items():
            self._check_shapes(index, given)
        state = {
            i: {name: value if name == _STEP else part.cut(asnumpy(value)) for name, value in given.items()}
            for i, part in enumerate(self._parts)
            if (given := whole.get(part.piece.index)) is not None
        }
        groups = [{**new, _PARAMS: old[_PARAMS]} for new, old in zip(saved, self._mine.param_groups)]
        self._mine.load_state_dict({"state": state, "param_groups": groups})
        for group, mine in zip(self.param_groups, self._mine.param_groups):
            group.update({name: value for name, value in mine.items() if name != _PARAMS})
        self._step = None  # if one had failed, it was of another state

    def _check_shapes(self, index: int, slots: Mapping[str, Any]) -> None:
        if index >= len(self._parameters):
            raise ArgumentError(f"the state has a parameter {index}, of {len(self._parameters)} here")
        shape = self._parameters[index].shape
        for name, array in slots.items():
            wanted = self._whole.rule.slot_shape(name, shape)
            if name != _STEP and array.shape != wanted:
                raise ArgumentError(
                    f"parameter {index}: {name} has shape {array.shape} in the state, it must have {wanted}"
                )


def _over_all(optimizer: Optimizer, model: Any) -> Optimizer:
    """An optimizer over all parameters that never steps: it has groups, and says what is wrong with them."""
    if not isinstance(optimizer, Optimizer):
        raise ArgumentError(f"{type(optimizer).__name__} is no optimizer: pass one as optim.Adam(lr=1e-3)")
    if optimizer.param_groups:
        kind = type(optimizer).__name__
        raise ArgumentError(
            f"this {kind} has parameters already: describe one without, as optim.{kind}(lr=...), and pass "
            "the model beside it"
        )
    named = _named(model)
    trained = [(name, parameter) for name, parameter in named if parameter.requires_grad]
    if named and not trained:
        raise ArgumentError("the model has no parameter that requires grad")
    return Optimizer(trained or model, optimizer.rule)


def _named(model: Any) -> list[tuple[str, Tensor]]:
    """Parameters by name of a Module, or of what wraps one; nothing of a list of parameters."""
    return list(model.named_parameters()) if callable(getattr(model, "named_parameters", None)) else []
