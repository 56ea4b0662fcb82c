"""Before training: all ranks have the same model and options, and start from rank 0's values."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from psframework import backend
from psframework.errors import ArgumentError, ModelMismatch
from psframework.nn import Module

_MOST = 4  # differences that a message lists


class Group(Protocol):
    """As much of a `psf.ProcessGroup` as is used here."""

    @property
    def size(self) -> int: ...
    @property
    def members(self) -> Sequence[str]: ...
    def gather_object(self, value: Any, dst: int) -> Any: ...
    def broadcast_object(self, value: Any, src: int) -> Any: ...
    def broadcast(self, array: Any, src: int) -> Any: ...


def check_group(group: object) -> None:
    """ArgumentError if this is no group, such as `cluster.process_group()` that was not awaited."""
    if not hasattr(group, "size"):
        raise ArgumentError(
            "group is to be a psf.ProcessGroup, as `await cluster.process_group()` gives, "
            f"not {type(group).__name__}"
        )


def check(module: object, group: object, bucket_cap_mb: float, hook: object) -> None:
    """ArgumentError for what DistributedDataParallel can't take, whatever the other ranks pass."""
    if not isinstance(module, Module):
        raise ArgumentError(f"DistributedDataParallel wraps an nn.Module, not {type(module).__name__}")
    check_group(group)
    if bucket_cap_mb < 0:
        raise ArgumentError(f"bucket_cap_mb={bucket_cap_mb}: a size in MiB")
    if hook is not None and not callable(hook):
        raise ArgumentError(f"hook={hook!r}: not a function of a bucket, nor one of psf.ddp.hooks")


async def agree(group: Group, module: Module, options: Mapping[str, object]) -> None:
    """Compares the model and options of all ranks. Collective.

    Raises:
        ModelMismatch: they differ; on every rank, with the rank and what differs.
    """
    everything = await group.gather_object(describe(module, options), 0)
    problem = None if everything is None else compare(everything, group.members)
    problem = await group.broadcast_object(problem, 0)
    if problem:
        raise ModelMismatch(problem)


async def spread(group: Group, module: Module, src: int = 0) -> None:
    """Gives every rank the parameters and buffers of rank `src`, in place. Collective."""
    arrays = [parameter.data for parameter in module.parameters()] + list(module.buffers())
    await asyncio.gather(*[group.broadcast(array, src) for array in arrays])
    for parameter in module.parameters():
        parameter.bump_version()  # a graph that saved the old values must notice


def describe(module: Module, options: Mapping[str, object]) -> dict[str, str]:
    """What ranks compare, as plain values: a line of text for each parameter, buffer and option, by name."""
    lines = {f"option {name}": str(value) for name, value in options.items()}
    for name, parameter in module.named_parameters():
        frozen = "" if parameter.requires_grad else ", which is frozen"
        lines[f"parameter {name!r}"] = _shape(parameter.data) + frozen
    for name, array in module.named_buffers():
        lines[f"buffer {name!r}"] = _shape(array)
    return lines


def compare(descriptions: Sequence[Mapping[str, str]], members: Sequence[str]) -> str:
    """What is wrong with the descriptions of all ranks; "" if they agree in content and order."""
    problems: list[str] = []
    for rank in range(1, len(descriptions)):
        problems += _differences(
            descriptions[0], descriptions[rank], f"rank 0 ({members[0]})", f"rank {rank} ({members[rank]})"
        )
    if not problems:
        return ""
    more = f"; and {len(problems) - _MOST} more" if len(problems) > _MOST else ""
    return f"the models of the ranks differ: {'; '.join(problems[:_MOST])}{more}"


def _differences(first: Mapping[str, str], other: Mapping[str, str], base: str, who: str) -> Iterator[str]:
    for name, what in first.items():
        if name not in other:
            yield f"{who} has no {name}, which {base} has"
        elif other[name] != what:
            yield f"{name} is {other[name]} on {who}, and {what} on {base}"
    for name, what in other.items():
        if name not in first:
            yield f"{who} has {name}, {what}, which {base} has not"
    if first.keys() == other.keys() and list(first) != list(other):
        mine, theirs = next((a, b) for a, b in zip(first, other) if a != b)
        yield f"{who} registered {theirs} where {base} registered {mine}"


def _shape(array: Any) -> str:
    return f"{backend.dtype_name(array.dtype)} {array.shape}"
