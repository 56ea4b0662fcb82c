"""Names of parameters and buffers in the state of a whole pipeline, and in the states of its stages."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from psframework.errors import ArgumentError, ModelMismatch
from psframework.pipeline.plan import Tie
from psframework.rpc.values.types import register_type


@register_type(name="psframework.pipeline.Naming")
@dataclass(frozen=True)
class Naming:
    """How names of a pipe's state go together with those of its stages.

    Stages that were listed have names as in an `nn.Sequential` of them: "STAGE.NAME". A Sequential that was
    cut has its own names: its first layer's are "0.NAME", whatever stage that is in.

    Args:
        stages: how many.
        layers: names of the layers of each stage, where a Sequential was cut; None: stages were listed.
    """

    stages: int
    layers: Sequence[Sequence[str]] | None = None

    def join(self, states: Mapping[int, Mapping[str, Any]]) -> dict[str, Any]:
        """The state of the pipe.

        Args:
            states: stage -> arrays by their names there.
        """
        return {
            name if self._is_whole else f"{stage}.{name}": array
            for stage in sorted(states)
            for name, array in states[stage].items()
        }

    def split(self, state: Mapping[str, Any]) -> dict[int, dict[str, Any]]:
        """The states of the stages, of each one.

        Raises:
            ModelMismatch: a name is of no stage.
        """
        found: dict[int, dict[str, Any]] = {stage: {} for stage in self._stage.values()}
        unknown = [name for name in state if name.partition(".")[0] not in self._stage]
        if unknown:
            raise ModelMismatch(
                f"this pipeline has no {', '.join(unknown)}: its names begin with {self._known}"
            )
        for name, array in state.items():
            first, _, rest = name.partition(".")
            found[self._stage[first]][name if self._is_whole else rest] = array
        return found

    def tie(self, names: Sequence[str]) -> Tie:
        """A tie of parameters by their names in the state of the pipe.

        Raises:
            ArgumentError: they are not of several stages.
        """
        unknown = [name for name in names if name.partition(".")[0] not in self._stage]
        if unknown:
            raise ArgumentError(
                f"ties names {unknown[0]!r}, which is in no stage: names begin with {self._known}"
            )
        places = sorted({place for name in names for place in [self._place(name)]})
        if len({stage for stage, _ in places}) < max(2, len(places)):
            raise ArgumentError(
                f"ties {tuple(names)} must name a parameter of each of several stages: within one stage use "
                "the same Parameter twice"
            )
        return tuple(places)

    def _place(self, name: str) -> tuple[int, str]:
        first, _, rest = name.partition(".")
        return self._stage[first], name if self._is_whole else rest

    @property
    def _is_whole(self) -> bool:
        return self.layers is not None

    @functools.cached_property
    def _stage(self) -> dict[str, int]:
        """The first part of a name -> its stage."""
        listed = [[str(stage)] for stage in range(self.stages)]
        return {name: stage for stage, names in enumerate(self.layers or listed) for name in names}

    @property
    def _known(self) -> str:
        return ", ".join(f"{name}." for name in self._stage)
