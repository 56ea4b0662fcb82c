"""Local optimizers: an update rule for each group of parameters, and the state of each parameter."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter
from sys import getrefcount
from typing import Any, TypeAlias, cast

from psframework.autograd.sparse import SparseRows
from psframework.autograd.tensor import Tensor
from psframework.backend import Array, DType, array_like, asnumpy, device_of
from psframework.errors import ArgumentError
from psframework.optim.apply import MASTER
from psframework.optim.blocks import on_device_of
from psframework.optim.rule import Scalars, UpdateRule, rule_from_spec

Gradient: TypeAlias = Array | SparseRows
Params: TypeAlias = Iterable[Tensor] | Iterable[tuple[str, Tensor]] | Iterable[dict[str, Any]]
"""Parameters, named parameters, or groups: dicts with "params" and the hyper-parameters that differ."""


@dataclasses.dataclass(slots=True)
class _Slots:
    """What one parameter remembers between steps."""

    name: str
    step: int
    state: dict[str, Array]


class Optimizer:
    """Applies a rule to parameters by their `.grad`; without parameters it only describes the rule.

    Attributes:
        param_groups: as torch's: dicts of "params" and hyper-parameters, which may be assigned
            (`optimizer.param_groups[0]["lr"] = 0.01`) and count from the next step.
    """

    def __init__(self, params: Params | None, rule: UpdateRule):
        self._rule = rule
        self._names = tuple(field.name for field in dataclasses.fields(rule))
        self._values = itemgetter(*self._names)
        self._defaults = self._values(vars(rule))
        self.param_groups: list[dict[str, Any]] = []
        self._slots: dict[Tensor, _Slots] = {}
        self._described_only = params is None
        if params is not None:
            for group in _as_groups(params):
                self.add_param_group(group)

    def __repr__(self) -> str:
        groups = [self._group_rule(group) for group in self.param_groups] or [self._rule]
        return f"{type(self).__name__}({', '.join(map(str, groups))})"

    @property
    def rule(self) -> UpdateRule:
        """The update rule (of the first group, if there are several)."""
        return self._group_rule(self.param_groups[0]) if self.param_groups else self._rule

    @property
    def state_nbytes(self) -> int:
        """Bytes of all slots; a parameter has them from its first step on."""
        return sum(array.nbytes for slots in self._slots.values() for array in slots.state.values())

    def add_param_group(self, group: Mapping[str, Any]) -> None:
        """Adds parameters, with hyper-parameters of their own or the optimizer's.

        Args:
            group: "params" (a Tensor, or several, with or without names), and hyper-parameters by name.
        """
        made = _group(self._rule, [])
        if unknown := sorted(set(group) - set(made)):
            raise ArgumentError(f"{self._rule.name} has no hyper-parameter {', '.join(unknown)}")
        if "params" not in group:
            raise ArgumentError(f'a group needs "params", this one has {", ".join(group) or "nothing"}')
        listed = [group["params"]] if isinstance(group["params"], Tensor) else list(group["params"])
        named = [entry if isinstance(entry, tuple) else ("", entry) for entry in listed]
        params = [parameter for _, parameter in named]
        made.update(group, params=params)
        self._group_rule(made)  # raises if a value is out of range
        for parameter in params:
            self._check_new(parameter)
        if len(set(params)) != len(params):
            raise ArgumentError("a parameter is listed twice")
        first = len(self._slots)
        for number, (name, parameter) in enumerate(named, first):
            self._slots[parameter] = _Slots(f"parameter {number}" + (f" ({name})" if name else ""), 0, {})
        self.param_groups.append(made)

    def _check_new(self, parameter: Tensor) -> None:
        if not isinstance(parameter, Tensor):
            raise ArgumentError(f"an optimizer takes Tensors, not {type(parameter).__name__}")
        if not parameter.is_leaf:
            raise ArgumentError("an optimizer takes leaf Tensors: this one was computed from others")
        if parameter in self._slots:
            raise ArgumentError("a parameter is listed twice")

    def _group_rule(self, group: Mapping[str, Any]) -> UpdateRule:
        values = self._values(group)
        if values == self._defaults:
            return self._rule
        return dataclasses.replace(self._rule, **dict(zip(self._names, values)))

    def step(self) -> None:
        """Updates every parameter that has a gradient, in place; the others are left as they are.

        Raises:
            ArgumentError: this optimizer was made without parameters.
        """
        if self._described_only:
            kind = type(self).__name__
            raise ArgumentError(
                f"this {kind} has no parameters: it describes an optimizer for a server. "
                f"To step locally make it with optim.{kind}(model.parameters(), ...)"
            )
        for group in self.param_groups:
            given = [(each, each._grad) for each in group["params"] if each._grad is not None]
            self._step_group(self._group_rule(group), given)

    def apply(self, gradients: Mapping[Tensor, Gradient], rule: UpdateRule | None = None) -> None:
        """As `step`, by gradients from elsewhere than `.grad`, while graphs over the parameters may live.

        Arrays with the old values stay as they are for whoever has them, such as a graph that is still to be
        differentiated: a parameter gets another array. Only two kinds are changed in place: a parameter whose
        array is part of a larger one, and one with sparse gradients, if nobody else has its array.

        Threads may call this at once for disjoint parameters.

        Args:
            gradients: of some of the parameters; they are not changed.
            rule: instead of that of each group.
        """
        for group in self.param_groups:
            given = [(each, gradients[each]) for each in group["params"] if each in gradients]
            self._step_group(rule or self._group_rule(group), given, in_place=False)

    def _step_group(
        self, rule: UpdateRule, given: Sequence[tuple[Tensor, Gradient]], in_place: bool = True
    ) -> None:
        # The numbers of the step, and how many slots there must be.
        prepared: dict[tuple[int, DType], tuple[Scalars, int]] = {}
        for parameter, gradient in given:
            replaced = not in_place and _is_kept(parameter, gradient)
            data = _copy(parameter._data) if replaced else parameter._data
            slots = self._slots[parameter]
            if not slots.step:
                slots.state = rule.init_state(data)
            key = slots.step + 1, data.dtype
            found = prepared.get(key)
            if found is None:
                found = prepared[key] = rule.scalars(slots.step + 1, data), len(rule.slot_values(data.dtype))
            scalars, count = found
            if len(slots.state) != count:
                slots.state = _fitted(slots.state, rule, data)
            try:
                rule.update_by(scalars, data, gradient, slots.state)
            except TypeError as error:
                raise _misplaced(slots, data, gradient) from error
            slots.step += 1
            if replaced:
                # The version first: whoever takes the new array finds the version that counts for it.
                parameter._version = [0]
                parameter._data = data
            else:
                # A graph that saved the old values must notice, as after any change in place.
                parameter.bump_version()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forgets the gradients (or, with `set_to_none=False`, fills those that are arrays with zeros)."""
        for parameter in self._slots:
            gradient = parameter.grad
            if set_to_none or isinstance(gradient, SparseRows):
                parameter.grad = None
            elif gradient is not None:
                gradient[...] = 0

    def state_dict(self) -> dict[str, Any]:
        """The optimizer as plain values, as torch lays it out; arrays are copies, schedules are specs.

        Returns:
            {"state": {index: {"step": int, slot: array}}, "param_groups": [{"params": [index], ...}]}.
        """
        index = {parameter: i for i, parameter in enumerate(self._slots)}
        state: dict[int, dict[str, Any]] = {}
        groups: list[dict[str, Any]] = []
        for group in self.param_groups:
            rule, parameters = self._group_rule(group), group["params"]
            groups.append({**rule.spec(), "params": [index[parameter] for parameter in parameters]})
            for parameter in parameters:
                slots = self._slots[parameter]
                if slots.step:
                    arrays = _fitted(slots.state, rule, parameter.data)
                    copies = {name: array.copy() for name, array in arrays.items()}
                    state[index[parameter]] = {"step": slots.step, **copies}
        return {"state": state, "param_groups": groups}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Takes over what `state_dict()` returned: slots, step counts and hyper-parameters.

        Parameters may have another dtype or device than those of the state had.

        Raises:
            ArgumentError: another number of groups or parameters, or slots of another shape or name.
                Nothing has been changed then.
        """
        if missing := [key for key in ("state", "param_groups") if key not in state_dict]:
            raise ArgumentError(f"this is no state of an optimizer: it has no {missing[0]!r}")
        saved = state_dict["param_groups"]
        theirs, ours = ([len(group["params"]) for group in groups] for groups in (saved, self.param_groups))
        if theirs != ours:
            raise ArgumentError(f"the state is of groups with {theirs} parameters, this optimizer has {ours}")
        groups = [self._loaded_group(old, new) for old, new in zip(self.param_groups, saved)]
        self._slots = self._loaded_slots(groups, {int(i): slots for i, slots in state_dict["state"].items()})
        self.param_groups = groups

    def _loaded_group(self, group: dict[str, Any], saved: Mapping[str, Any]) -> dict[str, Any]:
        values = {name: value for name, value in saved.items() if name != "params"}
        if values.get("name", self._rule.name) != self._rule.name:
            raise ArgumentError(f"the state is of {values['name']}, this optimizer is {self._rule.name}")
        return _group(rule_from_spec({**self._rule.spec(), **values}), group["params"])

    def _loaded_slots(
        self, groups: Sequence[Mapping[str, Any]], saved: Mapping[int, Mapping[str, Any]]
    ) -> dict[Tensor, _Slots]:
        if unknown := sorted(set(saved) - set(range(len(self._slots)))):
            raise ArgumentError(
                f"the state has a parameter {unknown[0]}, this optimizer only {len(self._slots)} parameters"
            )
        rules = {parameter: self._group_rule(group) for group in groups for parameter in group["params"]}
        return {
            parameter: _loaded(slots.name, parameter, rules[parameter], saved.get(i))
            for i, (parameter, slots) in enumerate(self._slots.items())
        }


_box = [object()]
_ALONE = getrefcount(_box[0])  # what getrefcount says of an object that only a container refers to


def _is_kept(parameter: Tensor, gradient: Gradient) -> bool:
    """Whether the array of a parameter has to stay as it is.

    That nobody else has a dense parameter's array at the moment says little: a forward in another thread may
    take it while it is being changed. A table's forward only reads some rows, and its copy would cost far
    more than its step.
    """
    if parameter._data.base is not None:
        return False  # part of a parameter server's arena, for instance, which has to see the change
    return not isinstance(gradient, SparseRows) or getrefcount(parameter._data) > _ALONE


def _copy(array: Array) -> Array:
    with on_device_of(array):
        return array.copy()


def _misplaced(slots: _Slots, data: Array, gradient: Array | SparseRows) -> ArgumentError:
    """What to say of arrays that the array library does not let meet."""
    values = gradient.values if isinstance(gradient, SparseRows) else gradient
    arrays = {"the parameter": data, "its gradient": values} | slots.state
    where = ", ".join(f"{what} is {array.dtype} on {device_of(array)}" for what, array in arrays.items())
    return ArgumentError(
        f"{slots.name} can't be updated: {where}. Make the optimizer after model.to(...), "
        "or load its state_dict() into it again, which moves it to where the parameters are"
    )


def _group(rule: UpdateRule, params: list[Tensor]) -> dict[str, Any]:
    return {"params": params, **{field.name: getattr(rule, field.name) for field in dataclasses.fields(rule)}}


def _loaded(name: str, parameter: Tensor, rule: UpdateRule, saved: Mapping[str, Any] | None) -> _Slots:
    if saved is None:
        return _Slots(name, 0, {})
    # A `master` that is missing is the parameter itself; one that the parameter has no need of is left aside.
    arrays = {slot: value for slot, value in saved.items() if slot not in ("step", MASTER)}
    state = rule.init_state(parameter.data)
    if set(arrays) != set(state) - {MASTER} or "step" not in saved:
        raise ArgumentError(
            f"{name}: {rule.name} keeps {', '.join(('step', *state))}, the state has {', '.join(saved)}"
        )
    if MASTER in state and MASTER in saved:
        arrays[MASTER] = saved[MASTER]
    for slot in arrays:
        array = state[slot]
        if arrays[slot].shape != array.shape:
            raise ArgumentError(
                f"{name}: {slot} has shape {arrays[slot].shape} in the state, it must have {array.shape} "
                f"for a parameter of shape {parameter.shape}"
            )
        array[...] = array_like(asnumpy(arrays[slot]), array)
    return _Slots(name, int(saved["step"]), state)


def _fitted(state: dict[str, Array], rule: UpdateRule, parameter: Array) -> dict[str, Array]:
    """The slots that the rule keeps: its hyper-parameters may have changed since the last step (momentum)."""
    if state.keys() == rule.slot_values(parameter.dtype).keys():
        return state
    return {name: state.get(name, array) for name, array in rule.init_state(parameter).items()}


def _as_groups(params: Params) -> list[dict[str, Any]]:
    if isinstance(params, Tensor):
        raise ArgumentError("an optimizer takes several parameters: put the Tensor into a list")
    if callable(getattr(params, "parameters", None)):
        kind = type(params).__name__
        raise ArgumentError(f"an optimizer takes parameters, not a {kind}: its .parameters()")
    listed = list(params)
    if not listed:
        raise ArgumentError(
            "the optimizer got an empty list of parameters: a generator, as model.parameters() is, can be "
            "read once; and a module does not see layers in a list: use nn.ModuleList"
        )
    if isinstance(listed[0], dict):
        return cast("list[dict[str, Any]]", listed)
    return [{"params": listed}]
