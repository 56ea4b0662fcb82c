"""The options of `cluster.pipeline`: their types, and what of them can't be right. No I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, TypedDict

from psframework.errors import ArgumentError
from psframework.pipeline.balance import Balance
from psframework.pipeline.spec import PipelineOptions


class FurtherOptions(TypedDict, total=False):
    """Options of `cluster.pipeline` that it has no parameter for: see `PipelineOptions`."""

    on: Sequence[str] | None
    commit_every: int
    timeout: float
    balance: Balance | Sequence[int] | None
    ties: Sequence[Sequence[str]]
    precision: str | None
    max_norm: float | None
    recompute: bool
    infer_rows: int
    driver: str | None
    name: str


def options_of(given: Mapping[str, Any]) -> PipelineOptions:
    """The options that were given, checked one by one; `blueprint` checks how they go together.

    Raises:
        TypeError: there is no such option; the message lists them.
        ArgumentError: one can't be right.
    """
    known = [field.name for field in fields(PipelineOptions)]
    for name in given:
        if name not in known:
            raise TypeError(
                f"cluster.pipeline() got an unexpected keyword argument {name!r}; its options are stages, "
                f"{', '.join(known)}"
            )
    options = PipelineOptions(**given)
    for name in ("microbatches", "virtual_stages", "commit_every", "infer_rows"):
        value = getattr(options, name)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ArgumentError(f"{name}={value!r}: a whole number, at least 1")
    if options.timeout < 0:
        raise ArgumentError(f"timeout={options.timeout}: seconds, or 0 for no limit")
    if isinstance(options.on, str):
        raise ArgumentError(f"on={options.on!r}: a list of names of services")
    return options
