"""The state of a module: its parameters and persistent buffers by name, and loading it strictly."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import TYPE_CHECKING, NamedTuple

from psframework import backend
from psframework.autograd import Tensor
from psframework.backend import Array
from psframework.errors import ModelMismatch

if TYPE_CHECKING:
    from psframework.nn.module import Module


class IncompatibleKeys(NamedTuple):
    """What a load left aside."""

    missing_keys: list[str]
    unexpected_keys: list[str]


def state_arrays(module: Module) -> Iterator[tuple[str, Array]]:
    """Arrays of all parameters and persistent buffers, with dotted names."""
    for path, owner, name, is_buffer in module._places(""):
        if not is_buffer:
            yield path, owner.__dict__[name].data
        elif owner._buffers[name]:
            yield path, owner.__dict__[name]


def load(module: Module, state: Mapping[str, Array | Tensor], strict: bool) -> IncompatibleKeys:
    """What `Module.load_state_dict` does."""
    own = dict(state_arrays(module))
    given = {name: v.data if isinstance(v, Tensor) else backend.as_array(v) for name, v in state.items()}
    keys = IncompatibleKeys([k for k in own if k not in given], [k for k in given if k not in own])
    problems = [
        f"{name} has shape {given[name].shape}, here {array.shape}"
        for name, array in own.items()
        if name in given and given[name].shape != array.shape
    ]
    if strict:
        problems += _key_problems(keys)
    if problems:
        advice = "load it into a model made with the same arguments"
        if strict and any(keys):
            advice += ", or pass strict=False to leave missing and unexpected names aside"
        raise ModelMismatch(
            f"the state does not fit {type(module).__name__}: {'; '.join(problems)}: {advice}"
        )
    for name, array in own.items():
        if name in given:
            array[...] = backend.to_device(given[name], backend.device_of(array))
    for parameter in module.parameters():
        parameter.bump_version()  # a graph that saved the old values must notice
    return keys


def _key_problems(keys: IncompatibleKeys) -> Iterator[str]:
    for name in keys.missing_keys:
        yield f"{name} is missing"
    for name in keys.unexpected_keys:
        near = get_close_matches(name, keys.missing_keys, 1)
        yield f"{name} is unexpected" + (f" (is it {near[0]}?)" if near else "")
