"""Parameters that several stages use: their gradients are added up, so that they stay equal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from psframework.backend import Array
from psframework.errors import ArgumentError
from psframework.nn import Module, Parameter


def tied_parameters(stages: Sequence[Module]) -> list[list[tuple[int, str]]]:
    """The parameters that occur in more than one stage, as an embedding that is the output's weight too.

    Found by identity: it must be the same Parameter object.

    Args:
        stages: the modules, before they go to their services.

    Returns:
        For each such parameter (stage, name there) in the order of stages; in a stage that uses it under
        several names the first.
    """
    places: dict[Parameter, list[tuple[int, str]]] = {}
    for number, stage in enumerate(stages):
        for name, parameter in stage.named_parameters():
            places.setdefault(parameter, []).append((number, name))
    return [found for found in places.values() if len(found) > 1]


def first_values(
    ties: Sequence[Sequence[tuple[int, str]]], values: Mapping[tuple[int, str], Array]
) -> dict[tuple[int, str], Array]:
    """What the copies of tied parameters begin with: the values of the first.

    Args:
        ties: (stage, name) of all copies of each.
        values: of each.

    Returns:
        The values for all copies but the first.

    Raises:
        ArgumentError: copies differ in shape or dtype.
    """
    for tie in ties:
        for place in tie:
            own, first = values[place], values[tie[0]]
            if (own.shape, own.dtype) != (first.shape, first.dtype):
                raise ArgumentError(
                    f"tied parameters differ: {_words(tie[0])} has shape {first.shape} and dtype "
                    f"{first.dtype}, {_words(place)} {own.shape} and {own.dtype}"
                )
    return {place: values[tie[0]] for tie in ties for place in tie[1:]}


def _words(place: tuple[int, str]) -> str:
    return f"{place[1]} of stage {place[0]}"
