"""Writes decided changes to the store on a thread of its own, many in one transaction, in order."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque

from psframework.errors import PeerLost, PsfError, ResourceExhausted
from psframework.membership.store import Change, Store

log = logging.getLogger(__name__)
_Item = tuple[int, Change, "asyncio.Future[None]"]


class Journal:
    """Group commit: while one transaction is being synced, the next changes gather.

    A change is published, on the loop and in the order of `submit`, when it is durable. If the store fails,
    every change not yet published is undone, newest first, and its waiter gets the error; later ones go on.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._queue: deque[_Item] = deque()
        self._pending: deque[_Item] = deque()  # the loop's view: submitted, not yet published
        self._wake = threading.Condition()
        self._closing = False
        self._round = 0  # raised after each failure, when everything pending has been undone
        self._failed_round = -1
        self._thread = threading.Thread(target=self._run, name="psf-store", daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None

    async def __aenter__(self) -> Journal:
        self._loop = asyncio.get_running_loop()
        self._thread.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        try:
            await self.flushed()
        except PsfError:
            pass  # whoever waits for the change has it
        finally:
            with self._wake:
                self._closing = True
                self._wake.notify()
            # At most one transaction long; awaiting it here would let a cancellation leave the thread behind.
            self._thread.join()

    def submit(self, change: Change) -> asyncio.Future[None]:
        """Queues a change; the future is done when it is durable and published.

        Raises (from the future):
            ResourceExhausted: the store could not be written; the change was undone.
            PeerLost: the journal is closed; the change was undone.
        """
        assert self._loop is not None, "the journal is not open"
        item = (self._round, change, self._loop.create_future())
        item[2].add_done_callback(_retrieve)
        if self._closing:
            change.undo()
            item[2].set_exception(PeerLost("the coordinator has stopped"))  # names nobody: try the next one
            return item[2]
        self._pending.append(item)
        with self._wake:
            self._queue.append(item)
            self._wake.notify()
        return item[2]

    async def flushed(self) -> None:
        """Waits until everything submitted so far is durable."""
        if self._pending:
            await asyncio.shield(self._pending[-1][2])

    def _run(self) -> None:
        assert self._loop is not None
        while True:
            with self._wake:
                while not self._queue and not self._closing:
                    self._wake.wait()
                if not self._queue:
                    return
                batch = list(self._queue)
                self._queue.clear()
                batch = [item for item in batch if item[0] > self._failed_round]
            if not batch:
                continue
            error = self._write(batch)
            if error is not None:
                self._failed_round = batch[0][0]
            try:
                self._loop.call_soon_threadsafe(self._settle, batch, error)
            except RuntimeError:
                return  # the loop is closed; nobody is left to hear it

    def _write(self, batch: list[_Item]) -> Exception | None:
        try:
            self._store.commit(write for _, change, _ in batch for write in change.writes)
        except Exception as error:  # whatever it is, the waiters must hear of it, and this thread must go on
            return error
        return None

    def _settle(self, batch: list[_Item], error: Exception | None) -> None:
        if error is None:
            for _, change, done in batch:
                self._pending.popleft()
                _publish(change, done)
            return
        self._round += 1
        told = error if isinstance(error, PsfError) else ResourceExhausted(f"the store failed: {error}")
        for _, change, done in reversed(self._pending):
            change.undo()
            if not done.done():
                done.set_exception(told)
        self._pending.clear()


def _publish(change: Change, done: asyncio.Future[None]) -> None:
    """A change that can't be published must not keep those after it from being so."""
    error: Exception | None = None
    try:
        change.publish()
    except Exception as failure:
        log.exception("a stored change could not be published")
        error = failure
    if done.done():
        return
    if error is None:
        done.set_result(None)
    else:
        done.set_exception(error)


def _retrieve(done: asyncio.Future[None]) -> None:
    """Marks a failure as seen: whoever submitted without waiting need not hear of it."""
    if not done.cancelled():
        done.exception()
