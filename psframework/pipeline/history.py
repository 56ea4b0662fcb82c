"""What a pipe has done since its newest commit, and when the next one is due. No I/O."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from psframework.errors import ArgumentError
from psframework.pipeline.microbatch import MicroBatches


@dataclass(frozen=True, slots=True)
class Done:
    """A batch that was trained on.

    Args:
        batch: its micro-batches.
        update: whether the parameters were updated then, or its gradients are added to those of the next.
        step: updates that were made before it.
        fresh: whether no gradients were there before it.
        earlier: batches whose gradients were there.
    """

    batch: MicroBatches
    update: bool = True
    step: int = 0
    fresh: bool = True
    earlier: int = 0


class History:
    """Inputs since the newest commit, so that they can be trained on again.

    Args:
        commit_every: steps between commits.

    Attributes:
        steps: updates that were made.
        commit: the newest one: the run that made it, by which it is named.
        steps_at_commit: updates that had been made then.
    """

    def __init__(self, commit_every: int = 1) -> None:
        if commit_every < 1:
            raise ArgumentError(f"commit_every={commit_every}: a number of steps, at least 1")
        self._every = commit_every
        self._since: list[Done] = []
        self.steps_at_commit = 0
        self.steps = 0
        self.commit = 0

    @property
    def since_commit(self) -> Sequence[Done]:
        """In their order."""
        return tuple(self._since)

    def place(self, batch: MicroBatches, update: bool) -> Done:
        """A batch as the next one."""
        before = self._since[-1] if self._since else Done(batch)
        earlier = 0 if before.update else before.earlier + 1
        return Done(batch, update, self.steps, not earlier, earlier)

    def commits(self, done: Done) -> bool:
        """Whether a commit is due after this one."""
        return done.update and done.step + 1 - self.steps_at_commit >= self._every

    def add(self, done: Done, run: int) -> None:
        """A batch was trained on in a run; if a commit was due, all ranks have it."""
        committed = self.commits(done)
        self._since.append(done)
        self.steps += done.update
        if committed:
            self.committed(run)

    def committed(self, run: int) -> None:
        """All ranks have a commit, made by this run, of where they are."""
        self.commit, self.steps_at_commit = run, self.steps
        self._since.clear()
