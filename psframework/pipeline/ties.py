"""Parameters that several stages use: their gradients are added up, so that they stay equal."""

from __future__ import annotations

from collections.abc import Sequence

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
