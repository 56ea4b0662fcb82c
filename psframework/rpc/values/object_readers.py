"""How Tensors, Modules, and what goes by name are read. Importing this module teaches `decoder` its kinds."""

from __future__ import annotations

import functools
import sys
from typing import Any

import numpy as np

from psframework import backend
from psframework.autograd import SparseRows, Tensor
from psframework.errors import ArgumentError, NotRegistered, PsfError, WireError
from psframework.nn import Module, Parameter, making, random
from psframework.rpc import registry
from psframework.rpc.values import journey as journeys
from psframework.rpc.values import kinds, modules
from psframework.rpc.values import types as registered
from psframework.rpc.values.decoder import Decoder, teach
from psframework.rpc.values.journey import Journey, Passenger
from psframework.rpc.values.readers import array_node, made


def _tensor(decoder: Decoder, depth: int) -> Tensor:
    return Tensor(array_node(decoder, depth))


def _parameter(decoder: Decoder, depth: int) -> Parameter:
    trained, array = decoder.byte() == kinds.TRUE, array_node(decoder, depth)
    if not getattr(array.flags, "writeable", True):
        array = array.copy()
    try:
        return Parameter(array, trained)
    except PsfError as error:
        raise WireError(f"a parameter: {error}") from None


def _sparse_rows(decoder: Decoder, depth: int) -> SparseRows:
    decoder.nest(depth)
    rows, values = array_node(decoder, depth + 1), array_node(decoder, depth + 1)
    shape = decoder.node(depth + 1)
    if not (isinstance(shape, tuple) and shape and all(map(_is_length, shape))):
        raise WireError("the shape of a sparse gradient is a tuple of lengths")
    found: SparseRows = made(SparseRows, rows, values, shape)
    if found.rows.size and not (int(found.rows.min()) >= 0 and int(found.rows.max()) < shape[0]):
        raise WireError(f"rows of a sparse gradient that its {shape[0]} rows do not have")
    return found


def _is_length(axis: object) -> bool:
    return type(axis) is int and 0 <= axis <= sys.maxsize


def _device(decoder: Decoder, depth: int) -> backend.Device:
    """The device of this name; one of its kind or the host's memory where it is missing."""
    try:
        return backend.device(decoder.text())
    except ArgumentError:
        return backend.CPU


def _generator(decoder: Decoder, depth: int) -> np.random.Generator:
    decoder.nest(depth)
    state, bits = decoder.node(depth + 1), np.random.PCG64(0)
    try:
        bits.state = state
    except Exception as error:
        raise WireError(f"the state of a random number generator: {error}") from None
    return np.random.Generator(bits)


# By name


def _enum(decoder: Decoder, depth: int) -> Any:
    count, name = decoder.number(), decoder.text()
    if count > 64:
        raise WireError(f"{count} flags in one value of {name[:100]}")
    return registered.enum_member(name, [decoder.text() for _ in range(count)])


def _record(decoder: Decoder, depth: int) -> object:
    record = registered.record_named(decoder.text())
    fields: dict[str, Any] = {}
    for _ in range(decoder.begin(depth)):
        name = decoder.text()
        fields[name] = decoder.node(depth + 1)
    return record.put_together(fields)


def _function(decoder: Decoder, depth: int) -> Any:
    return _find(decoder.text()).target


def _find(name: str) -> registry.Entry:
    try:
        return registry.find(name)
    except NotRegistered as error:
        raise WireError(str(error)) from None


def _module(decoder: Decoder, depth: int) -> Module:
    decoder.nest(depth)
    entry = _module_class(decoder, decoder.text())
    args, kwargs, state = decoder.items(3, depth + 1)
    if not isinstance(args, tuple) or not isinstance(kwargs, dict) or not all(type(k) is str for k in kwargs):
        raise WireError(f"arguments of {entry.name} that are no arguments")
    bound = None
    if modules.is_layer(entry.target):
        bound = decoder.modules().bound
        if any(isinstance(each, range) for each in (*args, *kwargs.values())):
            raise WireError(f"{entry.name} of a range, which may be longer than any memory")
    with making.within(bound), random.apart():
        module: Module = registered.make_again(entry.name, entry.target, args, kwargs)
    decoder.modules().add(module, state)
    return module


def _module_class(decoder: Decoder, name: str) -> registry.Entry:
    """The Module class of that name, if it may be made for the peer: that is a call of it."""
    entry, authorize, peer = _find(name), decoder.authorize, decoder.journey.peer
    allowed = decoder.modules().allowed
    if entry.kind is not registry.Kind.CLASS or not issubclass(entry.target, Module):  # type: ignore[arg-type]
        raise WireError(f"{entry.name} is no Module class")
    if authorize is not None and peer is not None and entry.name not in allowed:
        decoder.home(functools.partial(authorize, entry, peer))
        allowed.add(entry.name)
    return entry


def _same_module(decoder: Decoder, depth: int) -> Any:
    return decoder.modules().again(decoder.number())


def _passenger(decoder: Decoder, depth: int) -> object:
    kind, data = decoder.text(), bytes(decoder.blob())
    luggage = decoder.items(decoder.begin(depth), depth + 1)
    passenger = journeys.passenger_named(kind)
    if passenger is None:
        raise WireError(f"nothing here takes values of kind {kind[:100]!r}")
    return decoder.home(functools.partial(_arrive, passenger, data, luggage, decoder.journey))


def _arrive(passenger: Passenger, data: bytes, luggage: list[Any], journey: Journey) -> object:
    if journey.outcome is not None:
        raise WireError("the message was given up while it was being read")
    journey.luggage = luggage
    try:
        return passenger.arrive(data, journey)
    finally:
        journey.luggage = []


teach(
    {
        kinds.TENSOR: _tensor,
        kinds.PARAMETER: _parameter,
        kinds.SPARSE_ROWS: _sparse_rows,
        kinds.DEVICE: _device,
        kinds.GENERATOR: _generator,
        kinds.ENUM: _enum,
        kinds.RECORD: _record,
        kinds.FUNCTION: _function,
        kinds.MODULE: _module,
        kinds.PASSENGER: _passenger,
        kinds.SAME_MODULE: _same_module,
    }
)
