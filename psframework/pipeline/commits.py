"""The states of one rank that are kept, so that all ranks can go back to the same commit. No I/O."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from psframework.errors import NotRegistered

State = dict[int, dict[str, Any]]
"""Stage -> its snapshot."""


class Commits:
    """The newest commit that all ranks have, and the one that is being made.

    A commit is named by the run that made it. Names grow and never come again: one that was left half made,
    or comes late, is not taken for the next.
    """

    def __init__(self) -> None:
        self._states: dict[int, State] = {}
        self._complete = 0

    @property
    def numbers(self) -> Sequence[int]:
        """Names of those that are here, in order."""
        return tuple(sorted(self._states))

    def __getitem__(self, number: int) -> State:
        """One of them.

        Raises:
            NotRegistered: it is not here.
        """
        if number not in self._states:
            raise NotRegistered(f"there is no commit {number}, but {self.numbers}")
        return self._states[number]

    def add(self, number: int, complete: int, state: State) -> None:
        """One more; those that were left half made before it go.

        Args:
            number: its name.
            complete: the newest one that all ranks have.
            state: that it holds.
        """
        if complete < self._complete:
            return  # it was on its way for long
        self._complete = complete
        self._states = {
            each: kept for each, kept in self._states.items() if each == complete or each > number
        }
        self._states[number] = state

    def forget_before(self, complete: int) -> None:
        """All ranks have this one: older ones are not needed any more."""
        self._complete = max(self._complete, complete)
        self._states = {each: kept for each, kept in self._states.items() if each >= complete}

    def keep_only(self, number: int) -> None:
        """Goes back to one: later ones are not wanted any more."""
        self._states = {number: self[number]}

    def clear(self) -> None:
        """Forgets all."""
        self._states.clear()
