"""How Tensors, Modules, and what goes by name are written, and why the rest is refused.

Importing this module teaches `encoder` its types.
"""

from __future__ import annotations

import enum
import inspect
import types
from typing import Any

import numpy as np

from psframework import backend
from psframework.autograd import SparseRows, Tensor
from psframework.errors import ArgumentError, NotRegistered
from psframework.nn import Module, Parameter
from psframework.rpc import naming, registry
from psframework.rpc.values import journey as journeys
from psframework.rpc.values import kinds
from psframework.rpc.values import types as registered
from psframework.rpc.values.encoder import FALLBACKS, WRITERS, Encoder, Writer
from psframework.rpc.values.kinds import CannotTravel
from psframework.rpc.values.writers import any_array, other_array


def _tensor(encoder: Encoder, value: Tensor, depth: int) -> None:
    if not encoder.passenger(value, depth):
        encoder.outline.append(kinds.TENSOR)
        any_array(encoder, value.data, depth)


def _parameter(encoder: Encoder, value: Parameter, depth: int) -> None:
    if not encoder.passenger(value, depth):
        encoder.outline.append(kinds.PARAMETER)
        encoder.outline.append(kinds.TRUE if value.requires_grad else kinds.FALSE)
        any_array(encoder, value.data, depth)


def _sparse_rows(encoder: Encoder, value: SparseRows, depth: int) -> None:
    inner = encoder.open(kinds.SPARSE_ROWS, value, depth)
    any_array(encoder, value.rows, inner)
    any_array(encoder, value.values, inner)
    encoder.put(tuple(value.shape), inner)


def _device(encoder: Encoder, value: backend.Device, depth: int) -> None:
    encoder.outline.append(kinds.DEVICE)
    encoder.texts.append(str(value))


def _generator(encoder: Encoder, value: np.random.Generator, depth: int) -> None:
    bits = value.bit_generator
    if type(bits) is not np.random.PCG64:
        raise CannotTravel(f"a generator of {type(bits).__name__}: numpy.random.default_rng() ones travel")
    inner = encoder.open(kinds.GENERATOR, value, depth)
    encoder.put(dict(bits.state), inner)


def _dtype(encoder: Encoder, value: Any, depth: int) -> None:
    number = kinds.NUMBERS.get(value)
    if number is None:
        raise CannotTravel(f"dtype {value}")
    encoder.outline += bytes((kinds.DTYPE, number))


def _callable(encoder: Encoder, value: Any, depth: int) -> None:
    if inspect.isclass(value):
        if value in kinds.SCALARS:
            encoder.outline += bytes((kinds.SCALAR_TYPE, kinds.SCALARS[value]))
            return
        if kinds.PYTHON_TYPES.get(value.__name__) is value:
            encoder.outline.append(kinds.PYTHON_TYPE)
            encoder.texts.append(value.__name__)
            return
    try:
        name = registry.name_of(value)
    except (NotRegistered, ArgumentError) as error:
        raise CannotTravel(f"{naming.type_name(type(value))}: {error}") from None
    encoder.outline.append(kinds.FUNCTION)
    encoder.texts.append(name)


def _enum(encoder: Encoder, value: enum.Enum, depth: int) -> None:
    try:
        name, names = registered.enum_parts(value)
    except ArgumentError as error:
        raise CannotTravel(f"the enum {naming.type_name(type(value))}: {error}") from None
    encoder.outline.append(kinds.ENUM)
    encoder.number(len(names))
    encoder.texts.append(name)
    encoder.texts += names


def _record(encoder: Encoder, value: Any, depth: int) -> None:
    record = registered.record_of(type(value))
    assert record is not None
    inner = encoder.open(kinds.RECORD, value, depth)
    fields = [(name, getattr(value, name)) for name in record.fields if hasattr(value, name)]
    encoder.texts.append(record.name)
    encoder.number(len(fields))
    encoder.named(fields, inner, value)


def _passenger(encoder: Encoder, value: object, depth: int) -> None:
    if not encoder.passenger(value, depth):
        raise _refusal(value)


WRITERS.update(
    {
        Tensor: _tensor,
        Parameter: _parameter,
        SparseRows: _sparse_rows,
        backend.Device: _device,
        np.random.Generator: _generator,
    }
)

_CALLABLE = (type, types.FunctionType, types.MethodType, types.BuiltinFunctionType)


def _writer_of(value: object) -> Writer:
    """The writer of a value whose type alone doesn't say it; CannotTravel if there is none."""
    kind = type(value)
    if journeys.passenger_for(kind) is not None:
        return _passenger
    if registered.record_of(kind) is not None:
        return _record
    if isinstance(value, enum.Enum):
        return _enum
    if isinstance(value, Module):
        return Encoder.module
    if backend.is_array(value):
        return other_array
    if isinstance(value, np.dtype):
        return _dtype
    if isinstance(value, _CALLABLE):
        return _callable
    raise _refusal(value)


def _refusal(value: object) -> CannotTravel:
    kind = type(value)
    name = naming.type_name(kind)
    if registered.is_named_tuple(kind) or hasattr(kind, "__dataclass_fields__"):
        return CannotTravel(f"{name} can't travel: write @psf.register_type above the class")
    for base in kind.__mro__[1:]:
        if base in WRITERS:
            return CannotTravel(
                f"{name}, a subclass of {base.__name__}, can't travel: pass {base.__name__}(...)"
            )
    return CannotTravel(
        f"{name} can't travel: send plain values, arrays, Tensors, RRefs, or dataclasses added with "
        "psf.register_type; keep anything else where it is, as an RRef"
    )


FALLBACKS.append(_writer_of)
