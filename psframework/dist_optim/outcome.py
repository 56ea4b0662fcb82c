"""What several owners answered to one request: all results, or an error that says who did what."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from psframework.errors import PartialFailure


def check_all(
    verb: str, owners: Sequence[str], outcomes: Sequence[Any], *, none_done: bool = False
) -> list[Any]:
    """The results, if there are no errors among them.

    Args:
        verb: what was asked for, as "step".
        owners: their names.
        outcomes: result or exception of each.
        none_done: nobody does it unless all answer this.

    Raises:
        PartialFailure: some failed, or all for different reasons.
        BaseException: all failed with errors of one type: the first of them.
    """
    errors = {
        owner: outcome for owner, outcome in zip(owners, outcomes) if isinstance(outcome, BaseException)
    }
    if not errors:
        return list(outcomes)
    first = next(iter(errors.values()))
    if len(errors) == len(owners) and len({type(error) for error in errors.values()}) == 1:
        first.add_note(f"on {', '.join(errors)}")
        raise first
    done = [] if none_done else [owner for owner in owners if owner not in errors]
    raise PartialFailure(
        f"{', '.join(errors)} did not {verb}: "
        + "; ".join(f"{owner}: {type(error).__name__}: {error}" for owner, error in errors.items())
        + (f". Done by {', '.join(done)}" if done else ""),
        failed=list(owners) if none_done else list(errors),
        done=done,
    ) from first
