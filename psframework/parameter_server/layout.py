"""Where each parameter of a model lies in the arena: one run of bytes for all of them, grouped by dtype."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from psframework.backend import dtype_from_name, is_floating
from psframework.errors import ArgumentError, ModelMismatch

ALIGNMENT = 64
"""Bytes: each parameter begins on its own cache line."""


@dataclass(frozen=True, slots=True)
class ParameterSpec:
    """Name, dtype name and shape of one parameter."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of its elements."""
        return self.size * dtype_from_name(self.dtype).itemsize


@dataclass(frozen=True, slots=True)
class Field:
    """One parameter at its place.

    Args:
        spec: the parameter.
        offset: its first byte in the arena.
        span: its bytes, padding included.
    """

    spec: ParameterSpec
    offset: int
    span: int


@dataclass(frozen=True, slots=True)
class Layout:
    """The arena of a model; equal specs make equal layouts in every process.

    Args:
        fields: the parameters in the arena's order: by dtype (in order of first appearance), then as given.
        nbytes: length of the arena.
    """

    fields: tuple[Field, ...]
    nbytes: int

    @classmethod
    def of(cls, specs: Iterable[ParameterSpec]) -> Layout:
        """Lays out parameters.

        Raises:
            ArgumentError: no parameters, two of one name, or a dtype that isn't floating-point.
        """
        specs = tuple(specs)
        _check(specs)
        groups: dict[str, list[ParameterSpec]] = {}
        for spec in specs:
            groups.setdefault(spec.dtype, []).append(spec)
        fields = []
        offset = 0
        for group in groups.values():
            for spec in group:
                span = max(1, -(-spec.nbytes // ALIGNMENT)) * ALIGNMENT
                fields.append(Field(spec, offset, span))
                offset += span
        return cls(tuple(fields), offset)


def _check(specs: Sequence[ParameterSpec]) -> None:
    if not specs:
        raise ArgumentError("the model has no parameters")
    seen = set()
    for spec in specs:
        if spec.name in seen:
            raise ArgumentError(f"the model has two parameters named {spec.name!r}")
        seen.add(spec.name)
        if not is_floating(dtype_from_name(spec.dtype)):
            raise ArgumentError(
                f"parameter {spec.name!r} has dtype {spec.dtype}: parameters must be floating-point"
            )


def check_same(registered: Sequence[ParameterSpec], given: Sequence[ParameterSpec], model: str) -> None:
    """Compares a model with the one that is registered under its name.

    Raises:
        ModelMismatch: names the first parameter that differs, and both shapes or dtypes.
    """
    for ours, theirs in zip(given, registered):
        where = f"model {model!r}: parameter {ours.name!r}"
        if ours.name != theirs.name:
            raise ModelMismatch(f"{where} where {theirs.name!r} is registered")
        if ours.shape != theirs.shape:
            raise ModelMismatch(f"{where} has shape {ours.shape}, registered is {theirs.shape}")
        if ours.dtype != theirs.dtype:
            raise ModelMismatch(f"{where} has dtype {ours.dtype}, registered is {theirs.dtype}")
    if len(given) != len(registered):
        longer = given if len(given) > len(registered) else registered
        extra = longer[min(len(given), len(registered))].name
        side = "is not registered" if longer is given else "is registered, but missing here"
        raise ModelMismatch(f"model {model!r}: parameter {extra!r} {side}")
