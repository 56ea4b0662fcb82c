"""Jobs: known while they have members, and for one lease after the last one left. No I/O."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from psframework.membership.store import Write
from psframework.membership.view import Member

JOB_PREFIX = "job/"
DEFAULT_LEASE = 5.0  # seconds, for jobs of before the coordinator's start


def group_keys(job: str) -> str:
    """What the keys of a job's process groups begin with; they go with the job."""
    return f"group/{job}/"


@dataclass(slots=True)
class _Job:
    lease_s: float
    ends_at: float | None  # None: it has members


class JobTable:
    """All jobs whose state is still kept."""

    def __init__(self) -> None:
        self._jobs: dict[str, _Job] = {}

    def __contains__(self, job: str) -> bool:
        return job in self._jobs

    def load(self, items: Iterable[tuple[str, bytes]], now: float) -> None:
        """Takes over what was stored under `JOB_PREFIX`."""
        for key, _ in items:
            self._jobs[key.removeprefix(JOB_PREFIX)] = _Job(DEFAULT_LEASE, now + DEFAULT_LEASE)

    def begin(self, job: str, now: float) -> tuple[Write, ...]:
        """A member of `job` is about to join; returns what to store.

        The job is kept for one lease more, within which the member is observed (or its join has failed).
        """
        if not job:
            return ()
        known = self._jobs.setdefault(job, _Job(DEFAULT_LEASE, now))
        if known.ends_at is not None:
            known.ends_at = now + known.lease_s
        return (Write(JOB_PREFIX + job, b""),)

    def observe(self, members: Iterable[Member], now: float) -> None:
        """Takes note of who is there."""
        leases: dict[str, float] = {}
        for member in members:
            leases[member.job] = max(member.lease_s, leases.get(member.job, 0.0))
        for name, job in self._jobs.items():
            if name in leases:
                job.lease_s, job.ends_at = leases[name], None
            elif job.ends_at is None:
                job.ends_at = now + job.lease_s

    def ended(self, now: float) -> list[str]:
        """Forgets and returns the jobs whose last member left one lease ago."""
        names = [name for name, job in self._jobs.items() if job.ends_at is not None and job.ends_at <= now]
        for name in names:
            del self._jobs[name]
        return names
