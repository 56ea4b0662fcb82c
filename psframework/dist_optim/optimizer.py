"""`psf.DistributedOptimizer`: one optimizer for parameters that live in several processes."""

from __future__ import annotations

import asyncio
import dataclasses
import math
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from typing import Any, Final

from psframework.autograd.grad_mode import enable_grad
from psframework.autograd.tensor import Tensor
from psframework.dist_autograd import passenger
from psframework.dist_autograd.handle import DistContext
from psframework.dist_optim.outcome import check_all
from psframework.dist_optim.place import Elsewhere, Here, Place
from psframework.errors import ArgumentError, AutogradError, DeadlineExceeded, PsfError
from psframework.nn.module import Module
from psframework.optim.clip import GlobalNorm
from psframework.optim.optimizer import Optimizer
from psframework.optim.rule import UpdateRule, rule_from_spec
from psframework.rpc.functions.remote_client import deadline
from psframework.rref.handle import RRef

_PARAMS: Final = "params"


class DistributedOptimizer:
    """Steps parameters wherever they live, by the gradients of a distributed-autograd context.

        dist_opt = psf.DistributedOptimizer(optim.Adam(lr=1e-3), [rref, local_module])
        async with cluster.dist_autograd() as ctx:
            loss = F.cross_entropy(local_module(await rref.rpc_async().forward(x)), y)
            await ctx.backward([loss])
            await dist_opt.step(ctx)

    Each owner of parameters has an optimizer for those that live there, which is made at once and goes with
    this object. What is wrong with a remote item is raised by the first call that waits for its owner.

    Steps of several contexts may run at once, also over the same parameters: each parameter is stepped by one
    after the other. A step leaves the arrays with the old values as they are, so graphs of other contexts
    over them still give the right gradients; the parameter has another array (`.data`) afterwards.

    Args:
        optimizer: a description, without parameters: `optim.Adam(lr=1e-3)`.
        items: RRefs to Modules or Parameters, and Modules and Parameters of this process. One that is reached
            several times counts once; parameters of Modules that don't require grad are left out.

    Attributes:
        param_groups: one dict with the hyper-parameters, which may be assigned
            (`dist_opt.param_groups[0]["lr"] = 0.01`) and count from the next step, on all owners.

    Raises:
        ArgumentError: the optimizer has parameters; there are no items; a local one has no parameters that
            can be stepped.
    """

    def __init__(self, optimizer: Optimizer, items: Iterable[RRef | Module | Tensor]) -> None:
        if not isinstance(optimizer, Optimizer):
            raise ArgumentError(
                f"{type(optimizer).__name__} is no optimizer: pass one as optim.Adam(lr=1e-3)"
            )
        if optimizer.param_groups:
            kind = type(optimizer).__name__
            raise ArgumentError(
                f"this {kind} has parameters already: describe one without, as optim.{kind}(lr=...), and "
                "list Modules, Parameters and RRefs to them"
            )
        self._rule = optimizer.rule
        self.param_groups: list[dict[str, Any]] = [_values(self._rule)]
        self._places = _places(self._rule, _listed(items))
        self._made = False

    def __repr__(self) -> str:
        return (
            f"DistributedOptimizer({self._rule_now()}, on {', '.join(place.name for place in self._places)})"
        )

    @property
    def owners(self) -> Sequence[str]:
        """Names of the members with parameters, in the order of the list; "here" if it is only this one."""
        return [place.name for place in self._places]

    async def step(
        self, ctx: DistContext, max_norm: float | None = None, timeout: float | None = None
    ) -> float | None:
        """Applies the context's gradients to the parameters, everywhere at once, and waits for all owners.

        Parameters without a gradient in the context are left as they are. The gradients stay in the context.

        Args:
            ctx: whose `backward` has run.
            max_norm: scale all gradients so that their norm, as if they were one vector, is at most this, as
                `optim.clip_grad_norm_` does; costs one more round trip.
            timeout: seconds; None: 60; 0: no limit.

        Returns:
            With `max_norm`, the norm before.

        Raises:
            PartialFailure: some owners did not step; it names them, with the reasons, and those that did.
            PsfError: all owners failed, for this reason; one that is lost or late may have stepped before.
            AutogradError: no backward has run in the context.
            ContextClosed: the context has ended, or failed.
        """
        if max_norm is not None and not max_norm >= 0:
            raise ArgumentError(f"max_norm must be at least 0, not {max_norm}: gradients would turn around")
        rule = self._rule_now()
        spec = None if rule is self._rule else rule.spec()
        await self._wait_made(timeout)
        with ctx.inside(), enable_grad():  # calls under `no_grad` are part of no context
            if not ctx.backwards:
                raise AutogradError(
                    "no backward has run in this context: call `await ctx.backward([loss])` before the step"
                )
            norm, coefficient = None, 1.0
            if max_norm is not None:
                norm = await self._norm(timeout)
                coefficient = norm.coefficient(max_norm)
            await self._all(
                "step", [place.call("step", coefficient, spec, timeout=timeout) for place in self._places]
            )
        return None if norm is None else norm.value

    async def state_dict(self, timeout: float | None = None) -> dict[str, Any]:
        """The state of all owners' optimizers as plain values; arrays are copies, schedules are specs.

        A parameter is known by the place of its item in the list and its name there ("0.weight"), wherever it
        lives. So the state fits an optimizer whose items are the same, on other members.

        Returns:
            {"state": {key: {"step": int, slot: array}}, "param_groups": [{"params": [key], ...}]}.
        """
        await self._wait_made(timeout)
        keys = await self._keys(timeout)
        parts = await self._all_outside(
            "answer", [place.call("state_dict", timeout=timeout) for place in self._places]
        )
        together = {key: slots for part in parts for key, slots in part.items()}
        ordered = sorted((key for part in keys for key in part), key=_place_of)
        return {
            "state": {key: together[key] for key in ordered if key in together},
            "param_groups": [{**self._rule_now().spec(), _PARAMS: ordered}],
        }

    async def load_state_dict(self, state_dict: Mapping[str, Any], timeout: float | None = None) -> None:
        """Takes over what `state_dict()` returned: slots, step counts and hyper-parameters.

        Raises:
            ArgumentError: the state is of other parameters, of another kind of optimizer, or has slots of
                another shape. An owner that refuses its part has changed nothing.
            PartialFailure: some owners did not load.
        """
        rule, saved = self._loaded_rule(state_dict), state_dict["state"]
        await self._wait_made(timeout)
        keys = await self._keys(timeout)
        known = {key for part in keys for key in part}
        listed = set(state_dict["param_groups"][0][_PARAMS]) | set(saved)
        if listed != known:
            odd = sorted(listed ^ known)[0]
            whose = "this optimizer" if odd in known else "the state"
            raise ArgumentError(f"the state is of other parameters: only {whose} has {odd!r}")
        spec = rule.spec()
        calls = [
            place.call(
                "load_state_dict", {key: saved[key] for key in part if key in saved}, spec, timeout=timeout
            )
            for place, part in zip(self._places, keys)
        ]
        await self._all_outside("load", calls)
        self._rule, self.param_groups = rule, [_values(rule)]

    # Parts

    def _rule_now(self) -> UpdateRule:
        """The rule with the hyper-parameters as they are assigned; the same object if none was."""
        group = self.param_groups[0]
        return self._rule if group == _values(self._rule) else dataclasses.replace(self._rule, **group)

    def _loaded_rule(self, state_dict: Mapping[str, Any]) -> UpdateRule:
        groups: Sequence[Any] = state_dict.get("param_groups") or ()
        if "state" not in state_dict or len(groups) != 1 or _PARAMS not in groups[0]:
            raise ArgumentError("this is no state of a distributed optimizer")
        spec = {name: value for name, value in groups[0].items() if name != _PARAMS}
        if spec.get("name") != self._rule.name:
            raise ArgumentError(f"the state is of {spec.get('name')}, this optimizer is {self._rule.name}")
        return rule_from_spec(spec)

    async def _wait_made(self, timeout: float | None) -> None:
        """Before the first call: an owner that has no optimizer must stop all, not only its own part."""
        if self._made:
            return
        try:
            async with asyncio.timeout(deadline(timeout).seconds()):
                await self._all("get ready", [place.made() for place in self._places])
        except PsfError:
            raise
        except TimeoutError as error:
            raise DeadlineExceeded("items of a distributed optimizer are still being made") from error
        self._made = True

    async def _keys(self, timeout: float | None) -> list[list[str]]:
        return await self._all_outside(
            "answer", [place.call("keys", timeout=timeout) for place in self._places]
        )

    async def _norm(self, timeout: float | None) -> GlobalNorm:
        """Of all gradients; its bits don't depend on where they are, nor on who answers first."""
        calls = [place.call("powers", timeout=timeout) for place in self._places]
        parts = await self._all("tell the norm of its gradients, so none stepped", calls, none_done=True)
        powers = [power for part in parts for power in part]
        finite = all(map(math.isfinite, powers))
        return GlobalNorm(2.0, math.fsum(powers) if finite else sum(powers))

    async def _all(
        self, verb: str, calls: Sequence[Coroutine[Any, Any, Any]], none_done: bool = False
    ) -> list[Any]:
        """What all owners answer to calls at once, in their order."""
        outcomes = await asyncio.gather(*calls, return_exceptions=True)
        return check_all(verb, self.owners, outcomes, none_done=none_done)

    async def _all_outside(self, verb: str, calls: Sequence[Coroutine[Any, Any, Any]]) -> list[Any]:
        """As `_all`, in no context: one that has failed is not in the way."""
        with passenger.outside():
            return await self._all(verb, calls)


def _values(rule: UpdateRule) -> dict[str, Any]:
    return {field.name: getattr(rule, field.name) for field in dataclasses.fields(rule)}


def _listed(items: Any) -> list[Any]:
    if isinstance(items, RRef | Module | Tensor):
        raise ArgumentError(
            f"a distributed optimizer takes several items: put the {type(items).__name__} in a list"
        )
    listed = list(items)
    if not listed:
        raise ArgumentError("the list of Modules, Parameters and RRefs to them is empty")
    return listed


def _places(rule: UpdateRule, items: Sequence[Any]) -> list[Place]:
    """The owners, in the order of their first items."""
    by_owner: dict[int, list[tuple[int, Any]]] = {}
    for number, item in enumerate(items):
        elsewhere = isinstance(item, RRef) and not item.is_owner()
        by_owner.setdefault(item.owner_incarnation if elsewhere else 0, []).append((number, item))
    spec = rule.spec()
    me = next((item.table.identity.name for item in items if isinstance(item, RRef)), "here")
    return [Elsewhere(spec, own) if owner else Here(spec, own, me) for owner, own in by_owner.items()]


def _place_of(key: str) -> int:
    return int(key.partition(".")[0])
