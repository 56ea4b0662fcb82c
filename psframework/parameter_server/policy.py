"""Consistency policies, as users write them: ASP, BSP and SSP (Ho et al., NIPS 2013)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeAlias

from psframework.errors import ArgumentError


@dataclass(frozen=True, slots=True)
class ASP:
    """Asynchronous: a push is applied when it arrives, and a pull never waits."""

    name: ClassVar[str] = "asp"


@dataclass(frozen=True, slots=True)
class BSP:
    """Bulk synchronous: a step is applied once, as the mean over all trainers that count in it.

    Args:
        trainers: step 0 waits until so many have registered; None: the world size under `psf run`, else 1.
        spares: a step goes on without the last `spares` gradients, which are dropped.
        on_loss: "continue" goes on without a dead trainer; "wait" keeps its slot for its restart under the
            same name, which redoes the step.
        wait: how long "wait" waits, in seconds; then it goes on without.
    """

    name: ClassVar[str] = "bsp"
    trainers: int | None = None
    spares: int = 0
    on_loss: Literal["continue", "wait"] = "continue"
    wait: float = 60.0

    def __post_init__(self) -> None:
        if self.trainers is not None and (not _is_count(self.trainers) or self.trainers < 1):
            raise ArgumentError(f"BSP: trainers must be an integer of at least 1, not {self.trainers!r}")
        if not _is_count(self.spares) or self.spares < 0:
            raise ArgumentError(f"BSP: spares must be an integer of at least 0, not {self.spares!r}")
        if self.trainers is not None and self.spares >= self.trainers:
            raise ArgumentError(f"BSP: {self.spares} spares leave nobody of {self.trainers} trainers")
        if self.on_loss not in ("continue", "wait"):
            raise ArgumentError(f'BSP: on_loss must be "continue" or "wait", not {self.on_loss!r}')
        if not self.wait > 0:
            raise ArgumentError(f"BSP: wait must be above 0 seconds, not {self.wait!r}")


@dataclass(frozen=True, slots=True)
class SSP:
    """Stale synchronous: a push is applied when it arrives; a pull waits while its trainer is too far ahead.

    Args:
        staleness: how many steps the fastest trainer may be ahead of the slowest.
    """

    name: ClassVar[str] = "ssp"
    staleness: int = 0

    def __post_init__(self) -> None:
        if not _is_count(self.staleness) or self.staleness < 0:
            raise ArgumentError(f"SSP: staleness must be an integer of at least 0, not {self.staleness!r}")


Policy: TypeAlias = ASP | BSP | SSP
_KINDS: dict[str, type[ASP] | type[BSP] | type[SSP]] = {kind.name: kind for kind in (ASP, BSP, SSP)}


def for_world(policy: Policy, size: int | None) -> Policy:
    """The policy as ranks of one program mean it: BSP waits for all `size` of them, if it names no number."""
    if isinstance(policy, BSP) and policy.trainers is None and size is not None:
        return dataclasses.replace(policy, trainers=size)
    return policy


def policy_spec(policy: Policy) -> dict[str, Any]:
    """The policy as JSON-able values; `policy_from_spec` inverts."""
    return {"name": policy.name} | dataclasses.asdict(policy)


def policy_from_spec(spec: Mapping[str, Any]) -> Policy:
    """The policy that `policy_spec` described; ArgumentError if there is none such."""
    values = dict(spec)
    kind = _KINDS.get(str(values.pop("name", None)))
    if kind is None:
        raise ArgumentError(f"unknown consistency policy {spec.get('name')!r}; known: {', '.join(_KINDS)}")
    try:
        return kind(**values)
    except TypeError as error:
        raise ArgumentError(f"policy {kind.name}: {error}") from None


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
