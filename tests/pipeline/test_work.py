"""Work that is ended from elsewhere, by whoever waits for it, or by itself."""

import asyncio
import contextvars

import pytest

from psframework.errors import ContextClosed, PeerLost
from psframework.pipeline.work import Work

WHERE: contextvars.ContextVar[str] = contextvars.ContextVar("where", default="nowhere")


class Job:
    """Waits until it is told, and takes a while to clean up."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.steps: list[str] = []

    async def run(self) -> str:
        self.steps.append(f"begin {WHERE.get()}")
        try:
            await self.go.wait()
        finally:
            await asyncio.sleep(0)
            self.steps.append("end")
        return "result"


async def job_begins() -> None:
    """The task that waits begins, and then the work."""
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_result_and_an_error_come_through() -> None:
    work, job = Work(), Job()
    WHERE.set("here")
    job.go.set()
    assert await work.do(job.run()) == "result"
    assert job.steps == ["begin here", "end"] and len(work) == 0

    async def fails() -> None:
        raise ValueError("wrong")

    with pytest.raises(ValueError, match="wrong"):
        await work.do(fails())
    assert len(work) == 0


async def test_what_is_ended_has_ended() -> None:
    work, jobs = Work(), [Job(), Job()]
    tasks = [asyncio.create_task(work.do(job.run())) for job in jobs]
    await job_begins()
    assert len(work) == 2
    await work.end(PeerLost("aborted", peer="stage-1"))
    assert all(job.steps[-1] == "end" for job in jobs)
    for task in tasks:
        with pytest.raises(PeerLost, match="aborted"):
            await task
    assert len(work) == 0
    await work.end(ContextClosed("nothing is there"))


async def test_what_was_not_begun_never_begins() -> None:
    work, job = Work(), Job()
    task = asyncio.create_task(work.do(job.run()))
    await asyncio.sleep(0)  # the task that waits has begun, the work has not
    await work.end(ContextClosed("closed"))
    with pytest.raises(ContextClosed, match="closed"):
        await task
    assert job.steps == []


async def test_who_waits_may_be_cancelled() -> None:
    """Then the work is, and the cancellation is not taken for the other end."""
    work, job = Work(), Job()
    task = asyncio.create_task(work.do(job.run()))
    await job_begins()
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled() and job.steps[-1] == "end" and len(work) == 0


async def test_both_at_once_is_a_cancellation() -> None:
    work, job = Work(), Job()
    task = asyncio.create_task(work.do(job.run()))
    await job_begins()
    ending = asyncio.create_task(work.end(ContextClosed("closed")))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task, ending])
    assert task.cancelled() and job.steps[-1] == "end" and len(work) == 0
